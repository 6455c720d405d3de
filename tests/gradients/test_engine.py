from __future__ import annotations

import pytest
import torch
from torch import nn

from reticent.errors import ModelError, OptionError
from reticent.gradients import Flat, Normalised, PerLayer, clipped_sum, plans, rules

from .networks import batch, network
from .oracle import agrees, close, flat_sum, gradients, norms_of, snapshot, unchanged

CE = nn.CrossEntropyLoss()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("training", [True, False])
def test_a_small_cnn_with_in_place_activations(dtype, training):
    agrees(network(dtype).train(training), CE, *batch(dtype=dtype))


@pytest.mark.parametrize("path", ["auto", "fast", "reference"])
def test_no_examples(path):
    model = network()
    model.forward = None  # would fail if it were called
    x, y = batch(0)
    for style in (Flat(2.0), PerLayer(3.0), Normalised(0.5)):
        result = clipped_sum(model, CE, x, y, style, path=path)
        assert result.sensitivity == style.sensitivity
        assert result.norms.shape == result.losses.shape == (0,)
        assert int(result.nonfinite) == 0
        assert all(torch.equal(result.grads[n], p * 0) for n, p in model.named_parameters())


@pytest.mark.parametrize("path", ["fast", "reference"])
@pytest.mark.parametrize("microbatch", [1, 2, 3, 7, 100])
def test_microbatches_change_nothing(path, microbatch):
    model, (x, y) = network(), batch()
    whole = clipped_sum(model, CE, x, y, 0.1, path=path)
    parts = clipped_sum(model, CE, x, y, 0.1, path=path, microbatch=microbatch)
    torch.testing.assert_close(whole.flat(), parts.flat())
    torch.testing.assert_close(whole.norms, parts.norms)
    torch.testing.assert_close(whole.losses, parts.losses)


@pytest.mark.parametrize("keep", [0, 2**28])
def test_large_layers_are_handled_in_pieces(monkeypatch, keep):
    monkeypatch.setattr("reticent.gradients.rules.base.CACHED", 100)
    monkeypatch.setattr("reticent.gradients.norms.KEEP_BYTES", keep)
    agrees(network(), CE, *batch())  # convolution, written out
    torch.manual_seed(0)
    grams = nn.Sequential(nn.Conv2d(16, 32, 2), nn.Tanh(), nn.Flatten(2), nn.Linear(4, 8))
    head = nn.Sequential(nn.Tanh(), nn.Flatten(), nn.Linear(256, 3))
    x, y = torch.randn(5, 16, 3, 3, dtype=torch.float64), torch.randint(0, 3, (5,))
    agrees(nn.Sequential(grams, head).double(), CE, x, y)
    wide = nn.Sequential(nn.Linear(30, 30), nn.Tanh(), nn.Flatten(), nn.Linear(90, 3)).double()
    agrees(wide, CE, torch.randn(5, 3, 30, dtype=torch.float64), y)


def test_losses_are_those_of_the_examples():
    model, (x, y) = network(), batch()
    for path in ("fast", "reference"):
        result = clipped_sum(model, CE, x, y, 0.1, path=path)
        each = nn.functional.cross_entropy(model(x), y, reduction="none")
        torch.testing.assert_close(result.losses, each)
        assert not result.losses.requires_grad


@pytest.mark.parametrize("path", ["fast", "reference"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("style", [Flat(0.1), Flat(float("inf")), PerLayer(0.1), Normalised(0.1)])
def test_examples_that_are_not_finite_contribute_exactly_zero(path, value, style):
    model, (x, y) = network(), batch()
    poisoned = x.clone()
    poisoned[2, 0, 3, 3] = value
    poisoned[5] = value
    good = [0, 1, 3, 4, 6]
    expected = clipped_sum(model, CE, x[good], y[good], style, path=path)
    result = clipped_sum(model, CE, poisoned, y, style, path=path)
    torch.testing.assert_close(result.flat(), expected.flat(), rtol=1e-9, atol=1e-12)
    assert int(result.nonfinite) == 2
    assert result.norms[[2, 5]].isinf().all()
    torch.testing.assert_close(result.norms[good], expected.norms)


@pytest.mark.parametrize("path", ["fast", "reference"])
def test_a_loss_that_is_not_finite_counts_even_if_its_gradient_is(path):
    model, (x, y) = network(), batch()

    def loss(output, target):
        return (output.sum(1) + torch.where(target == 0, torch.inf, 0.0)).sum()

    result = clipped_sum(model, loss, x, y, 0.1, path=path)
    assert int(result.nonfinite) == int((y == 0).sum()) > 0
    expected = clipped_sum(model, loss, x[y != 0], y[y != 0], 0.1, path=path)
    torch.testing.assert_close(result.flat(), expected.flat())


@pytest.mark.parametrize("layer", ["conv", "embedding", "norm", "lstm", "attention", "generic"])
def test_a_nan_example_does_not_reach_the_others(layer):
    torch.manual_seed(0)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(4, 4)
            self.layer = {
                "conv": nn.Conv1d(5, 5, 2, padding=1),
                "embedding": nn.Embedding(9, 4),
                "norm": nn.LayerNorm(4),
                "lstm": nn.LSTM(4, 4, batch_first=True),
                "attention": nn.MultiheadAttention(4, 2, batch_first=True),
                "generic": nn.PReLU(5),
            }[layer]
            self.last = nn.Linear(4, 3)

        def forward(self, x):
            h = self.first(x)
            if layer == "embedding":
                h = h * self.layer(torch.arange(5).expand(len(x), -1))
            elif layer == "attention":
                h = self.layer(h, h, h)[0]
            else:
                h = self.layer(h)
                h = h[0] if isinstance(h, tuple) else h[..., :4]
            return self.last(h.mean(1))

    model = Net().double()
    x, y = torch.randn(6, 5, 4, dtype=torch.float64), torch.randint(0, 3, (6,))
    x[1] = float("nan")
    rest = [0, 2, 3, 4, 5]
    result = clipped_sum(model, CE, x, y, 0.1, path="fast")
    expected = clipped_sum(model, CE, x[rest], y[rest], 0.1, path="fast")
    torch.testing.assert_close(result.flat(), expected.flat())
    assert int(result.nonfinite) == 1


@pytest.mark.parametrize("path", ["fast", "reference"])
def test_a_mask_marks_padding(path):
    model, (x, y) = network(), batch()
    x = x.clone()
    x[6] = float("nan")
    mask = torch.tensor([1, 1, 0, 1, 0, 1, 0])
    keep = mask.bool()
    expected = clipped_sum(model, CE, x[keep], y[keep], 0.1, path=path)
    for micro in (None, 3):
        result = clipped_sum(model, CE, x, y, 0.1, path=path, mask=mask, microbatch=micro)
        torch.testing.assert_close(result.flat(), expected.flat())
        assert int(result.nonfinite) == 0
        torch.testing.assert_close(result.norms[keep], expected.norms)
        assert (result.norms[~keep] == 0).all()
    with pytest.raises(OptionError, match="mask"):
        clipped_sum(model, CE, x, y, 0.1, mask=mask[:3])


@pytest.mark.parametrize("path", ["fast", "reference"])
@pytest.mark.parametrize("style", [Flat(0.1), Normalised(0.1), PerLayer(0.1)], ids=str)
def test_examples_below_their_least_norm_give_nothing(path, style):
    model, (x, y) = network(), batch()
    norms = clipped_sum(model, CE, x, y, style, path=path).norms
    least = norms * torch.tensor([0.9, 1.1, 0.0, torch.inf, 0.99, 1.01, 1.0])
    keep = norms >= least
    assert keep.tolist() == [True, False, True, False, True, False, True]
    expected = clipped_sum(model, CE, x[keep], y[keep], style, path=path)
    for micro in (None, 3):
        result = clipped_sum(model, CE, x, y, style, path=path, least=least, microbatch=micro)
        torch.testing.assert_close(result.flat(), expected.flat())
        torch.testing.assert_close(result.norms, norms)  # known all the same
        assert int(result.nonfinite) == 0
    with pytest.raises(OptionError, match="least"):
        clipped_sum(model, CE, x, y, style, least=least[:3])


def test_sums_go_into_a_flat_buffer():
    model, (x, y) = network(), batch()
    total = sum(p.numel() for p in model.parameters())
    out = torch.zeros(total, dtype=torch.float64)
    result = clipped_sum(model, CE, x, y, 0.1, out=out)
    torch.testing.assert_close(out, clipped_sum(model, CE, x, y, 0.1).flat())
    assert result.grads["0.weight"].data_ptr() == out.data_ptr()
    before = out.clone()
    clipped_sum(model, CE, x, y, 0.1, out=out)
    torch.testing.assert_close(out, 2 * before)
    for bad in (torch.zeros(3), torch.zeros(total), torch.zeros(total, 1, dtype=torch.float64)):
        with pytest.raises(OptionError, match="out"):
            clipped_sum(model, CE, x, y, 0.1, out=bad)


def test_flat_takes_an_order():
    result = clipped_sum(network(), CE, *batch(), 0.1)
    names = list(result.grads)[::-1]
    torch.testing.assert_close(
        result.flat(names), torch.cat([result.grads[n].flatten() for n in names])
    )
    with pytest.raises(OptionError, match="order"):
        result.flat(names[1:])


def test_frozen_parameters_are_left_out():
    model, (x, y) = network(), batch()
    model[0].requires_grad_(False)
    model[5].bias.requires_grad_(False)
    agrees(model, CE, x, y)
    model.requires_grad_(False)
    with pytest.raises(ModelError, match="no trainable"):
        clipped_sum(model, CE, x, y, 1.0)


def test_parameters_that_are_not_used_get_zero():
    class Spare(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.spare = nn.Linear(4, 3), nn.Linear(2, 2)

        def forward(self, x):
            return self.used(x)

    torch.manual_seed(0)
    agrees(Spare().double(), CE, torch.randn(3, 4, dtype=torch.float64), torch.tensor([0, 1, 2]))


def test_tuples_and_dicts_of_inputs():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 3), nn.Embedding(5, 3)

        def forward(self, x, tokens):
            return self.a(x) * self.b(tokens)

    torch.manual_seed(0)
    model = Two().double()
    x, tokens = torch.randn(5, 4, dtype=torch.float64), torch.randint(0, 5, (5,))
    y = torch.randint(0, 3, (5,))
    agrees(model, CE, (x, tokens), y)
    agrees(model, CE, {"tokens": tokens, "x": x}, y, microbatch=2)
    both = {"class": y, "shift": torch.randn(5, 3, dtype=torch.float64)}
    agrees(model, lambda o, t: CE(o + t["shift"], t["class"]), (x, tokens), both)


def test_shapes_must_agree_on_the_number_of_examples():
    with pytest.raises(ModelError, match="dimension 0"):
        clipped_sum(nn.Linear(3, 2), CE, torch.randn(4, 3), torch.zeros(5, dtype=torch.long), 1.0)
    with pytest.raises(ModelError, match="no tensor"):
        clipped_sum(nn.Linear(3, 2), CE, (), torch.zeros(5), 1.0)


@pytest.mark.parametrize(
    ("option", "value"), [("path", "quick"), ("microbatch", 0), ("microbatch", 1.5), ("clip", -1)]
)
def test_options_are_checked(option, value):
    x, y = batch()
    options = {"clip": 1.0, option: value}
    with pytest.raises(OptionError, match=option):
        clipped_sum(network(), CE, x, y, **options)


def test_half_precision_is_summed_in_single():
    model, (x, y) = network(torch.bfloat16), batch(dtype=torch.bfloat16)
    rows = gradients(model, CE, x, y)
    for path in ("fast", "reference"):
        result = clipped_sum(model, CE, x, y, 0.1, path=path)
        assert {g.dtype for g in result.grads.values()} == {torch.float32}
        assert result.norms.dtype == torch.float32
        close(result.norms, norms_of(rows), 0.02)
        for name, value in flat_sum(rows, 0.1).items():
            close(result.grads[name], value, 0.03, name)


def test_single_and_double_precision_in_one_model():
    class Widens(nn.Module):
        def forward(self, x):
            return x.double()

    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(40, 40), nn.Tanh(), Widens(), nn.Linear(40, 3, dtype=torch.float64)
    )
    x, y = torch.randn(30, 40), torch.randint(0, 3, (30,))
    agrees(model, CE, x, y, tolerance=3e-4)
    for i in range(30):
        one = clipped_sum(model, CE, x[i : i + 1], y[i : i + 1], 0.01)
        assert one.grads["0.weight"].dtype == torch.float32
        assert float(one.flat().double().norm()) <= 0.01


def test_autocast_runs_the_model_in_half_and_the_norms_in_single():
    model, (x, y) = network(torch.float32), batch(dtype=torch.float32)
    rows = gradients(model, CE, x, y)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        result = clipped_sum(model, CE, x, y, 0.1, path="fast")
    assert result.norms.dtype == torch.float32
    close(result.norms, norms_of(rows), 0.1)
    close(result.flat(), torch.cat([v.flatten() for v in flat_sum(rows, 0.1).values()]), 0.15)


def test_autocast_does_not_reach_the_clipping():
    # products rounded to bfloat16 would be off by far more than the slack
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 3), nn.Flatten())
    x, y = torch.randn(8, 6, 32), torch.randint(0, 18, (8,))
    for i in range(8):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            one = clipped_sum(model, CE, x[i : i + 1], y[i : i + 1], Normalised(1.0), path="fast")
        assert 1 - 1e-4 <= float(one.flat().double().norm()) <= 1


def test_gradients_off_outside_makes_no_difference():
    model, (x, y) = network(), batch()
    expected = clipped_sum(model, CE, x, y, 0.1).flat()
    with torch.no_grad():
        torch.testing.assert_close(clipped_sum(model, CE, x, y, 0.1).flat(), expected)


@pytest.mark.parametrize("path", ["auto", "fast", "reference"])
@pytest.mark.parametrize("where", ["model", "loss"])
def test_the_model_is_left_as_it_was_when_something_fails(path, where):
    class Fails(nn.Module):
        def forward(self, x):
            if where == "model":
                raise RuntimeError("broken on purpose")
            return x

    model = nn.Sequential(nn.Linear(4, 3), Fails(), nn.LSTM(3, 3)).double()
    model[0].weight.grad = torch.ones_like(model[0].weight)
    before = snapshot(model)

    def loss(output, target):
        raise RuntimeError("broken on purpose")

    with pytest.raises((RuntimeError, ModelError), match="broken on purpose"):
        clipped_sum(
            model[:2], loss, torch.randn(2, 4, dtype=torch.float64), torch.zeros(2), 1.0, path=path
        )
    unchanged(model, before)


def test_existing_gradients_are_not_touched():
    model, (x, y) = network(), batch()
    CE(model(x), y).backward()
    kept = {n: p.grad.clone() for n, p in model.named_parameters()}
    clipped_sum(model, CE, x, y, 0.1)
    assert all(torch.equal(p.grad, kept[n]) for n, p in model.named_parameters())


def test_the_fast_path_never_waits_for_the_device(monkeypatch):
    model, (x, y) = network(), batch()

    def waits(*args, **kwargs):
        raise AssertionError("the fast path asked a tensor for its value")

    for module in (rules.base, plans):
        monkeypatch.setattr(module, "all_known", lambda keep: False)  # asked on the CPU only
    for name in ("item", "__bool__", "__int__", "__float__", "tolist", "numpy", "cpu"):
        monkeypatch.setattr(torch.Tensor, name, waits)
    clipped_sum(model, CE, x, y, 0.1, path="fast", mask=torch.ones(7), microbatch=4)
