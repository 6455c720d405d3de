from __future__ import annotations

import functools

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from reticent.errors import ModelError
from reticent.gradients import clipped_sum
from reticent.gradients.losses import per_example_losses

B, C = 6, 4


def classes(*shape):
    return torch.randint(0, C, (B, *shape))


def data(seed=0):
    torch.manual_seed(seed)
    weight = torch.rand(C, dtype=torch.float64) + 0.1
    logits, spatial = torch.randn(B, C).double(), torch.randn(B, C, 3, 2).double()
    probabilities = torch.softmax(torch.randn(B, C).double(), 1)
    plain, other = torch.randn(B, 5).double(), torch.rand(B, 5).double()
    labels, maps = classes(), classes(3, 2)
    maps[0, 0, 0] = maps[2, 1, 1] = 1
    pos = torch.rand(5).double() + 0.5
    return {
        "ce": (nn.CrossEntropyLoss, {}, logits, labels),
        "ce weight": (nn.CrossEntropyLoss, {"weight": weight}, logits, labels),
        "ce smooth": (nn.CrossEntropyLoss, {"label_smoothing": 0.2}, logits, labels),
        "ce smooth weight": (
            nn.CrossEntropyLoss,
            {"label_smoothing": 0.2, "weight": weight},
            spatial,
            maps,
        ),
        "ce ignore": (nn.CrossEntropyLoss, {"ignore_index": 1, "weight": weight}, spatial, maps),
        "ce spatial": (nn.CrossEntropyLoss, {"weight": weight}, spatial, maps),
        "ce probabilities": (nn.CrossEntropyLoss, {"weight": weight}, logits, probabilities),
        "ce probabilities smooth": (
            nn.CrossEntropyLoss,
            {"weight": weight, "label_smoothing": 0.1},
            spatial,
            torch.softmax(torch.randn_like(spatial), 1),
        ),
        "nll": (nn.NLLLoss, {"weight": weight}, logits.log_softmax(1), labels),
        "nll ignore": (nn.NLLLoss, {"ignore_index": 1}, spatial.log_softmax(1), maps),
        "mse": (nn.MSELoss, {}, plain, other),
        "mse flat": (nn.MSELoss, {}, plain[:, 0], other[:, 0]),
        "mse broadcast": (nn.MSELoss, {}, plain[:, :1], other[:, 0]),
        "l1": (nn.L1Loss, {}, plain, other),
        "smooth l1": (nn.SmoothL1Loss, {"beta": 0.3}, plain, other),
        "huber": (nn.HuberLoss, {"delta": 0.3}, plain, other),
        "bce": (nn.BCELoss, {}, plain.sigmoid(), other),
        "bce weight": (nn.BCELoss, {"weight": pos}, plain.sigmoid(), other),
        "bce logits": (nn.BCEWithLogitsLoss, {}, plain, other),
        "bce logits pos": (nn.BCEWithLogitsLoss, {"pos_weight": pos, "weight": pos}, plain, other),
        "kl": (nn.KLDivLoss, {}, logits.log_softmax(1), probabilities),
        "poisson": (nn.PoissonNLLLoss, {}, plain, other),
    }


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("case", list(data()))
def test_each_loss_is_that_of_a_batch_of_one(case, reduction):
    kind, options, outputs, targets = data()[case]
    loss_fn = kind(reduction=reduction, **options)
    outputs = outputs.detach().requires_grad_()
    losses = per_example_losses(loss_fn, outputs, targets)
    expected = torch.stack(
        [loss_fn(outputs[i : i + 1], targets[i : i + 1]).sum() for i in range(B)]
    )
    torch.testing.assert_close(losses, expected)
    ours = torch.autograd.grad(losses.sum(), outputs)[0]
    torch.testing.assert_close(ours, torch.autograd.grad(expected.sum(), outputs)[0])


FUNCTIONS = [
    (F.cross_entropy, "ce spatial"),
    (F.nll_loss, "nll"),
    (F.mse_loss, "mse"),
    (F.l1_loss, "l1"),
    (F.smooth_l1_loss, "smooth l1"),
    (F.huber_loss, "huber"),
    (F.binary_cross_entropy, "bce"),
    (F.binary_cross_entropy_with_logits, "bce logits"),
    (functools.partial(F.cross_entropy, label_smoothing=0.1), "ce"),
    (lambda o, t: (o - t).abs().sum(), "mse"),
]


@pytest.mark.parametrize(("loss_fn", "case"), FUNCTIONS)
def test_functions(loss_fn, case):
    _, _, outputs, targets = data()[case]
    expected = torch.stack(
        [loss_fn(outputs[i : i + 1], targets[i : i + 1]).sum() for i in range(B)]
    )
    torch.testing.assert_close(per_example_losses(loss_fn, outputs, targets), expected)


def test_an_example_whose_targets_are_all_ignored_contributes_nothing():
    model = nn.Linear(3, C).double()
    x, y = torch.randn(B, 3).double(), classes()
    y[2] = -100
    result = clipped_sum(model, nn.CrossEntropyLoss(), x, y, 1.0)
    rest = [0, 1, 3, 4, 5]
    expected = clipped_sum(model, nn.CrossEntropyLoss(), x[rest], y[rest], 1.0)
    torch.testing.assert_close(result.flat(), expected.flat())
    assert int(result.nonfinite) == 1  # a mean over nothing is NaN, as it is for PyTorch


def test_a_subclass_of_a_known_loss_is_not_taken_for_it():
    class Doubled(nn.CrossEntropyLoss):
        def forward(self, output, target):
            return 2 * super().forward(output, target)

    _, _, outputs, targets = data()["ce"]
    plain = per_example_losses(nn.CrossEntropyLoss(), outputs, targets)
    torch.testing.assert_close(per_example_losses(Doubled(), outputs, targets), 2 * plain)


def test_outputs_and_targets_may_be_nested():
    outputs = {"a": torch.randn(B, 2), "b": (torch.randn(B),)}
    targets = (torch.randn(B, 2), None)

    def loss(o, t):
        return ((o["a"] - t[0]).square().sum(1) + o["b"][0]).mean()

    expected = (outputs["a"] - targets[0]).square().sum(1) + outputs["b"][0]
    torch.testing.assert_close(per_example_losses(loss, outputs, targets), expected)


def test_a_loss_that_cannot_be_mapped_says_so():
    def branches(output, target):
        return output.sum() if output.sum().item() > 0 else output.mean()

    with pytest.raises(ModelError, match=r"branches .*vmap"):
        per_example_losses(branches, torch.randn(B, 2), torch.randn(B))
    with pytest.raises(ModelError, match="batch dimension"):
        per_example_losses(branches, torch.randn(()), torch.randn(B))
