from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, spectral_norm

from reticent.errors import ModelError
from reticent.gradients import clipped_sum, per_example, replace_batchnorm, validate

from .oracle import agrees

BAD = {
    "BatchNorm1d": (nn.BatchNorm1d(4), "GroupNorm(4, 4)"),
    "BatchNorm2d": (nn.BatchNorm2d(48), "GroupNorm(16, 48)"),
    "BatchNorm3d": (nn.BatchNorm3d(4), "replace_batchnorm"),
    "SyncBatchNorm": (nn.SyncBatchNorm(4), "replace_batchnorm"),
    "LazyBatchNorm2d": (nn.LazyBatchNorm2d(), "made-up batch"),
    "LazyLinear": (nn.LazyLinear(3), "made-up batch"),
    "InstanceNorm": (nn.InstanceNorm2d(4, track_running_stats=True), "track_running_stats=False"),
    "max_norm": (nn.Embedding(4, 3, max_norm=1.0), "max_norm=None"),
    "by_freq": (nn.Embedding(4, 3, scale_grad_by_freq=True), "scale_grad_by_freq"),
    "bag": (nn.EmbeddingBag(4, 3, max_norm=1.0), "max_norm=None"),
    "spectral": (spectral_norm(nn.Linear(4, 3)), "spectral_norm"),
    "spectral new": (parametrizations.spectral_norm(nn.Linear(4, 3)), "spectral_norm"),
    "no stats": (nn.BatchNorm1d(4, track_running_stats=False).eval(), "replace_batchnorm"),
}


@pytest.mark.parametrize("case", BAD)
def test_refused_with_a_fix(case):
    module, advice = BAD[case]
    model = nn.Sequential(nn.Linear(3, 4), nn.Sequential(module))
    with pytest.raises(ModelError) as caught:
        validate(model)
    assert "1.0 (" in str(caught.value)
    assert advice in str(caught.value)
    x, y = torch.randn(3, 3), torch.tensor([0, 1, 2])
    for compute in (
        lambda: clipped_sum(model, nn.CrossEntropyLoss(), x, y, 1.0),
        lambda: per_example(model, nn.CrossEntropyLoss(), x, y),
    ):
        with pytest.raises(ModelError, match="cannot be trained privately"):
            compute()


def test_all_problems_are_reported_at_once():
    model = nn.ModuleDict({"a": nn.BatchNorm1d(4), "ok": nn.Linear(2, 2), "b": nn.LazyLinear(3)})
    with pytest.raises(ModelError, match=r"(?s)a \(BatchNorm1d\).*b \(LazyLinear\)"):
        validate(model)


def test_frozen_statistics_are_fine():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 2), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 3))
    model(torch.randn(8, 1, 3, 3))
    model.double().eval()
    x, y = torch.randn(3, 1, 3, 3, dtype=torch.float64), torch.tensor([0, 1, 2])
    agrees(model, nn.CrossEntropyLoss(), x, y)


def test_replacing_batchnorm_is_explicit_and_leaves_the_original():
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(6)
    nn.init.normal_(norm.weight)
    model = nn.Sequential(nn.Conv2d(1, 6, 2), norm, nn.Sequential(norm), nn.Flatten())
    model[1].weight.requires_grad_(False)
    new = replace_batchnorm(model)
    assert model[1] is norm
    assert isinstance(new[1], nn.GroupNorm)
    assert new[1] is new[2][0]
    assert new[1].num_groups == 2
    assert torch.equal(new[1].weight, norm.weight)
    assert new[1].weight is not norm.weight
    assert not new[1].weight.requires_grad
    validate(new)
    assert replace_batchnorm(new) is not new
    assert isinstance(replace_batchnorm(nn.BatchNorm1d(4)), nn.GroupNorm)
    with pytest.raises(ModelError, match="lazy"):
        replace_batchnorm(nn.Sequential(nn.LazyBatchNorm2d()))
