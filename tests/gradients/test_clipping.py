from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from reticent.errors import OptionError
from reticent.gradients import Automatic, Flat, Normalised, PerLayer, clipped_sum
from reticent.gradients.clipping import slack_for

from .oracle import close, contribution, gradients, norms_of

STYLES = [Flat(0.05), Flat(1e-4), Automatic(0.05), Automatic(0.3, 1.0), Normalised(0.05)]


def network(dtype=torch.float64):
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv1d(2, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 5), nn.Tanh(), nn.Linear(5, 3)
    ).to(dtype)


def batch(size=9, dtype=torch.float64):
    torch.manual_seed(1)
    scale = torch.logspace(-3, 2, size, dtype=dtype).view(-1, 1, 1) if size else 1.0
    return torch.randn(size, 2, 6, dtype=dtype) * scale, torch.randint(0, 3, (size,))


@pytest.mark.parametrize("style", STYLES, ids=str)
@pytest.mark.parametrize("path", ["fast", "reference"])
def test_styles_follow_their_formula(style, path):
    model, (x, y) = network(), batch()
    rows = gradients(model, nn.CrossEntropyLoss(), x, y)
    n = norms_of(rows)
    factors = {
        Flat: lambda: (style.bound / n).clamp(max=1),
        Automatic: lambda: style.bound / (n + style.gamma),
        Normalised: lambda: style.bound / n,
    }[type(style)]()
    result = clipped_sum(model, nn.CrossEntropyLoss(), x, y, style, path=path)
    assert result.sensitivity == style.bound
    close(result.norms, n, 1e-9)
    for name, each in rows.items():
        close(result.grads[name], torch.tensordot(factors, each, 1), 1e-9, name)


@pytest.mark.parametrize("path", ["fast", "reference"])
@pytest.mark.parametrize(
    ("given", "bounds"),
    [
        (0.3, [0.3 / math.sqrt(3)] * 3),
        ({"0": 0.1, "3": 0.2, "5": 0.4}, [0.1, 0.2, 0.4]),
        ([0.4, 0.2, 0.1], [0.4, 0.2, 0.1]),
    ],
)
def test_per_layer_clips_each_module_alone(given, bounds, path):
    model, (x, y) = network(), batch()
    rows = gradients(model, nn.CrossEntropyLoss(), x, y)
    style = PerLayer(given)
    result = clipped_sum(model, nn.CrossEntropyLoss(), x, y, style, path=path)
    assert result.sensitivity == pytest.approx(math.sqrt(sum(b * b for b in bounds)))
    close(result.norms, norms_of(rows), 1e-9)
    for module, bound in zip(("0", "3", "5"), bounds, strict=True):
        own = {k: v for k, v in rows.items() if k.startswith(module)}
        factors = (bound / norms_of(own)).clamp(max=1)
        for name, each in own.items():
            close(result.grads[name], torch.tensordot(factors, each, 1), 1e-9, name)


def test_per_layer_with_a_tied_parameter_counts_it_once():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)).double()
    model[2].weight = model[0].weight
    x, y = torch.randn(5, 4, dtype=torch.float64), torch.randint(0, 4, (5,))
    rows = gradients(model, nn.CrossEntropyLoss(), x, y)
    for path in ("fast", "reference"):
        result = clipped_sum(model, nn.CrossEntropyLoss(), x, y, PerLayer([0.1, 0.2]), path=path)
        for prefix, bound in (("0", 0.1), ("2", 0.2)):
            own = {k: v for k, v in rows.items() if k.startswith(prefix)}
            factors = (bound / norms_of(own)).clamp(max=1)
            for name, each in own.items():
                close(result.grads[name], torch.tensordot(factors, each, 1), 1e-9, name)


@pytest.mark.parametrize("style", [*STYLES, PerLayer(0.05), Flat(1e-12), Flat(7.0)], ids=str)
def test_no_contribution_is_longer_than_the_bound_in_float32(style):
    model, (x, y) = network(torch.float32), batch(12, torch.float32)
    for i in range(12):
        length = contribution(model, nn.CrossEntropyLoss(), x, y, style, i)
        assert length <= style.sensitivity
        if isinstance(style, Normalised):
            assert length >= style.sensitivity * (1 - 1e-4)


def test_no_contribution_is_longer_than_the_bound_for_long_sequences():
    # Gram norms and long sums: the rounding of the contraction must fit in the slack as well
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(96, 96), nn.Tanh(), nn.Linear(96, 3), nn.Flatten())
    x, y = torch.randn(12, 32, 96) * 5, torch.randint(0, 96, (12,))
    for i in range(12):
        for style in (Flat(1e-3), Normalised(10.0)):
            length = contribution(model, nn.CrossEntropyLoss(), x, y, style, i)
            assert length <= style.sensitivity
            assert length >= style.sensitivity * (1 - 1e-4)


def test_a_zero_gradient_stays_zero():
    model = nn.Linear(3, 2).double()
    x, y = torch.zeros(4, 3, dtype=torch.float64), torch.zeros(4, 2, dtype=torch.float64)

    def nothing(output, target):
        return (output * 0).sum()

    for style in (*STYLES, PerLayer(1.0), Flat(math.inf)):
        for path in ("fast", "reference"):
            result = clipped_sum(model, nothing, x, y, style, path=path)
            assert torch.equal(result.flat(), torch.zeros(8, dtype=torch.float64))
            assert int(result.nonfinite) == 0


def test_gradients_too_small_to_square_do_not_become_infinite():
    model = nn.Linear(3, 1)
    x, y = torch.ones(2, 3), torch.zeros(2, 1)
    for scale in (1e-20, 1e-30, 1e-38):

        def tiny(output, target, scale=scale):
            return (output * scale).sum()

        for style in (*STYLES, Flat(1e-12)):
            result = clipped_sum(model, tiny, x, y, style)
            assert result.flat().isfinite().all()
            assert float(result.flat().double().norm()) <= 2 * style.sensitivity


@pytest.mark.parametrize("positions", [1, 3])
def test_a_tiny_input_with_a_huge_gradient_is_clipped(positions):
    # |x|² underflows while |x||g| is far above the bound
    model = nn.Sequential(nn.Linear(20, 20, bias=False), nn.Flatten())
    x = torch.full((1, positions, 20), 1e-24)
    y = torch.full((1, 20 * positions), -3e17)
    style = Flat(1e-8)
    total = clipped_sum(model, nn.MSELoss(reduction="sum"), x, y, style, path="fast")
    assert int(total.nonfinite) == 0
    assert float(total.flat().double().norm()) <= style.bound


def test_infinite_bound_is_the_plain_gradient():
    model, (x, y) = network(), batch(4)
    result = clipped_sum(model, nn.CrossEntropyLoss(reduction="sum"), x, y, math.inf)
    assert result.sensitivity == math.inf
    loss = nn.CrossEntropyLoss(reduction="sum")(model(x), y)
    for name, grad in zip(
        result.grads, torch.autograd.grad(loss, list(model.parameters())), strict=True
    ):
        close(result.grads[name], grad, 1e-9, name)


@pytest.mark.parametrize("bad", [0, -1.0, 1e-13, math.nan, "x", None, True])
@pytest.mark.parametrize("style", [Flat, Automatic, Normalised, PerLayer])
def test_bounds_that_cannot_work_are_refused(style, bad):
    with pytest.raises(OptionError, match=r"bound|clip"):
        style(bad)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Automatic(math.inf),
        lambda: Normalised(math.inf),
        lambda: PerLayer(math.inf),
        lambda: PerLayer([]),
        lambda: PerLayer({"a": -1}),
        lambda: Automatic(1.0, 0.0),
    ],
)
def test_other_values_that_cannot_work(make):
    with pytest.raises(OptionError):
        make()


def test_per_layer_names_must_fit_the_model():
    model, (x, y) = network(), batch(2)
    with pytest.raises(OptionError, match="0, 3, 5"):
        clipped_sum(model, nn.CrossEntropyLoss(), x, y, PerLayer({"0": 1.0}))
    with pytest.raises(OptionError, match="needs 3 numbers"):
        clipped_sum(model, nn.CrossEntropyLoss(), x, y, PerLayer([1.0]))


def test_slack_follows_the_precision_of_products():
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    assert slack_for(torch.float64, cuda) < slack_for(torch.float32, cpu) < 1e-4
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("high")
        assert slack_for(torch.float32, cuda) >= 2**-10
        torch.set_float32_matmul_precision("medium")
        assert slack_for(torch.float32, cpu) >= 2**-7
    finally:
        torch.set_float32_matmul_precision(before)
    assert slack_for(torch.float32, cpu) < 1e-4


def test_styles_are_values():
    assert Flat(1) == Flat(1.0)
    assert hash(PerLayer({"a": 1.0})) == hash(PerLayer({"a": 1.0}))
    with pytest.raises(AttributeError):
        Flat(1.0).bound = 2.0
