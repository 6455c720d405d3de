from __future__ import annotations

import pytest
import torch

import reticent as rt
from reticent.errors import CheckpointError, OptionError

from .problem import INPUTS, TARGETS, model, options, weights

DATA = (INPUTS, TARGETS)


def test_full_precision_is_what_the_cpu_does_anyway():
    plain = weights(rt.train(model(), DATA, **options()))
    named = weights(rt.train(model(), DATA, **options(precision="float32")))
    assert torch.equal(plain, named)


def test_bfloat16_layers_move_the_weights_a_little_and_the_bound_not_at_all():
    plain = rt.train(model(), DATA, **options())
    half = rt.train(model(), DATA, **options(precision="bf16"))
    assert not torch.equal(weights(plain), weights(half))
    torch.testing.assert_close(weights(plain), weights(half), rtol=0.2, atol=0.05)
    assert weights(half).dtype == torch.float32
    assert half.epsilon == plain.epsilon


def test_no_record_contributes_more_than_the_bound_in_bfloat16():
    training = rt.run(model(), DATA, **options(precision="bf16"))
    run = training.run
    for record in range(20):
        run.begin_release()
        total = run.clipped_sum(torch.tensor([record]), rt.gradients.Flat(1e-3))
        assert float(total.flat.norm()) <= 1e-3


@pytest.mark.parametrize(("precision", "why"), [("fp8", "one of"), ("tf32", "CUDA")])
def test_what_the_device_does_not_have_is_refused(precision, why):
    with pytest.raises(OptionError, match=f"precision = '{precision}'.*{why}"):
        rt.run(model(), DATA, **options(precision=precision))


def test_settings_are_as_before_afterwards():
    before = torch.get_float32_matmul_precision(), torch.is_autocast_enabled("cpu")
    rt.train(model(), DATA, **options(precision="bf16", steps=2))
    assert before == (torch.get_float32_matmul_precision(), torch.is_autocast_enabled("cpu"))


def test_a_run_goes_on_in_the_precision_it_was_begun_in(tmp_path):
    training = rt.run(model(), DATA, **options(folder=tmp_path, precision="bf16"))
    releases = iter(training)
    next(releases)
    training.checkpoint()
    with pytest.raises(CheckpointError, match="other precision"):
        rt.run(model(), DATA, **options(folder=tmp_path, resume=True))
    resumed = rt.train(
        model(), DATA, **options(folder=tmp_path, resume=True, precision="bf16", coins=None)
    )
    whole = rt.train(model(), DATA, **options(precision="bf16"))
    assert torch.equal(weights(resumed), weights(whole))
