"""Whitening by public images: its closed form, and the images themselves."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from reticent.errors import OptionError
from reticent.features import whitening as whitening_file
from reticent.features.whitening import PROCESSES, Whitening, public_images, whitening
from reticent.pretraining import contrastive


def correlated(count: int, width: int) -> torch.Tensor:
    mixing = torch.randn(width, width, dtype=torch.float64) / width**0.5
    return torch.randn(count, width, dtype=torch.float64) @ mixing + torch.arange(width)


@pytest.mark.parametrize("ridge", [1e-12, 0.1, 1.0, 30.0])
def test_the_covariance_of_whitened_features_has_its_closed_form(ridge: float) -> None:
    public = correlated(500, 6)
    learned = whitening(public, ridge)
    values = public.numpy()
    covariance = np.cov(values, rowvar=False, bias=True)
    ridged = covariance + ridge * np.trace(covariance) / 6 * np.eye(6)
    np.testing.assert_allclose(learned.centre.numpy(), values.mean(0))
    matrix = learned.matrix.numpy()
    np.testing.assert_allclose(matrix.T @ matrix, np.linalg.inv(ridged), rtol=1e-7, atol=1e-9)
    assert np.allclose(matrix, np.tril(matrix))  # of all roots the one that depends on no sign
    assert (matrix.diagonal() > 0).all()
    whitened = (values - values.mean(0)) @ matrix.T
    found = np.cov(whitened, rowvar=False, bias=True)
    # (C + r)^-1/2 C (C + r)^-1/2 up to a rotation: the same eigenvalues
    eigenvalues = np.linalg.eigvalsh(covariance)
    expected = eigenvalues / (eigenvalues + ridge * np.trace(covariance) / 6)
    np.testing.assert_allclose(np.linalg.eigvalsh(found), np.sort(expected), rtol=1e-6)
    if ridge < 1e-9:
        np.testing.assert_allclose(found, np.eye(6), atol=1e-6)


def test_every_record_gets_length_one_and_nothing_else_of_others() -> None:
    learned = whitening(correlated(100, 5), 0.5)
    records = torch.randn(7, 5, dtype=torch.float64)
    made = learned(records)
    torch.testing.assert_close(made.norm(dim=1), torch.ones(7, dtype=torch.float64))
    for record, row in zip(records, made, strict=True):
        alone = learned.matrix @ (record - learned.centre)
        torch.testing.assert_close(row, alone / alone.norm())
    assert not learned(learned.centre[None]).any()  # the only record without a direction
    assert learned(records[:0]).shape == (0, 5)


def test_few_images_and_a_ridge_too_small() -> None:
    few = torch.randn(3, 40)
    assert isinstance(whitening(few, 0.1), Whitening)
    assert whitening(few[:1], 1.0).matrix.isfinite().all()
    with pytest.raises(OptionError, match=r"ridge = 1e-12: .* 3 images and 40 features; take a"):
        whitening(few, 1e-12)
    with pytest.raises(OptionError, match="ridge = 0: must be greater than 0"):
        whitening(few, 0)


@pytest.mark.parametrize("process", PROCESSES)
def test_public_images_are_a_function_of_their_arguments(
    process: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(whitening_file, "_PIECE", 32)  # fewer at a time
    monkeypatch.setattr(contrastive, "_PIECE", 64)
    public_images.cache_clear()
    bank = public_images(process, 40, (3, 8, 8))
    assert bank.dtype == torch.uint8
    assert bank.shape == (40, 3, 8, 8)
    public_images.cache_clear()
    torch.manual_seed(7)  # other randomness has no say
    assert torch.equal(public_images(process, 40, (3, 8, 8)), bank)
    assert torch.equal(public_images(process, 25, (3, 8, 8)), bank[:25])
    assert not torch.equal(public_images(process, 40, (3, 8, 8), seed=1), bank)
    assert len(bank.flatten(1).unique(dim=0)) > 35  # an image is drawn for itself
    public_images.cache_clear()


def test_shapes_of_public_images() -> None:
    square = public_images("figures", 6, (3, 12, 12)).float()
    grey = public_images("figures", 6, (1, 12, 12)).float()
    luma = 0.299 * square[:, 0] + 0.587 * square[:, 1] + 0.114 * square[:, 2]
    assert (grey[:, 0] - luma).abs().max() <= 1.01  # both were rounded
    flat = public_images("figures", 6, (3, 8, 12)).float()
    assert torch.equal(flat, square[:, :, 2:10])  # the middle of a square
    with pytest.raises(OptionError, match="process = 'photos': must be one of mixed, strokes"):
        public_images("photos", 1, (1, 8, 8))
    with pytest.raises(OptionError, match="images = 0"):
        public_images("mixed", 0, (1, 8, 8))
