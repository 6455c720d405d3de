"""W_hh, W_ih and both biases from one product, against autograd one example at a time."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

from reticent.gradients import clipped_sum
from reticent.gradients.recording import Tape, find_units, recording
from reticent.gradients.rules.linear import LINEAR, writing_is_cheaper
from reticent.gradients.rules.stepping import BIASES, STEPS

from ..oracle import agrees
from .test_recursion import CE, KINDS, Reader, batch

ROLES = ("hidden", "inward", *BIASES)
SHARED = ("LSTM", "tanh", "relu")  # the kinds whose weights share a gradient
LENGTHS = (3, 40)  # by Gram matrices, written out


def operands(length: int, bias: bool, width: int = 2):
    """A layer of 3 units, rows [h, x, 1] as views into memory in the order of time, g."""
    torch.manual_seed(length)
    rnn = nn.LSTM(width, 3, bias=bias)
    x = torch.randn(length, 4, 3 + width + bias, dtype=torch.float64).transpose(0, 1)
    if bias:
        x[..., -1] = 1.0
    return rnn, x, torch.randn(length, 4, 12, dtype=torch.float64).transpose(0, 1)


def by_definition(x, g, width: int = 2):
    """Every gradient from its own sum over the steps."""
    h, inputs = x[..., :3], x[..., 3 : 3 + width]
    sums = {role: g.sum(1) for role in BIASES}
    products = {"hidden": h, "inward": inputs}
    return sums | {r: torch.einsum("btg,bti->bgi", g, rows) for r, rows in products.items()}


def choices(bias: bool):
    roles = ROLES if bias else ROLES[:2]
    sizes = range(1, len(roles) + 1)
    return [set(some) for size in sizes for some in itertools.combinations(roles, size)]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("length", LENGTHS)
def test_every_form_agrees_with_the_definition(length, bias):
    rnn, x, g = operands(length, bias)
    assert STEPS.instantiates(rnn, x, g) == (length == 40)
    truth = by_definition(x, g)
    for roles in choices(bias):
        written = STEPS.per_example(rnn, x, g, roles)
        norms = STEPS.squared_norms(rnn, x, g, roles)
        sums = STEPS.weighted_sum(rnn, x, g, roles)
        again, masses = STEPS.measures(rnn, x, g, roles)
        largest = STEPS.mass(rnn, x, g, roles)
        for found in (written, norms, sums, again, masses, largest):
            assert found.keys() == roles
        for role in roles:
            torch.testing.assert_close(written[role], truth[role])
            torch.testing.assert_close(sums[role], truth[role].sum(0))
            squares = truth[role].flatten(1).square().sum(1)
            torch.testing.assert_close(norms[role], squares)
            torch.testing.assert_close(again[role], squares)
            assert bool((masses[role] * (1 + 1e-9) >= squares).all())
            assert bool((largest[role].square() * (1 + 1e-9) >= squares).all())


def test_masses_are_those_of_the_linear_maps():
    rnn, x, g = operands(40, True)
    found = STEPS.mass(rnn, x, g, ROLES)
    for role, rows in (("hidden", x[..., :3]), ("inward", x[..., 3:5])):
        expected = (rows.norm(dim=2) * g.norm(dim=2)).sum(1)
        torch.testing.assert_close(found[role], expected)
    for role in BIASES:
        torch.testing.assert_close(found[role], g.norm(dim=2).sum(1))
    rnn, x, g = operands(3, True)  # by Gram matrices, but not for the biases
    masses = STEPS.measures(rnn, x, g, ROLES)[1]
    for role in BIASES:
        torch.testing.assert_close(masses[role], g.norm(dim=2).sum(1).square())


def test_a_written_gradient_is_read_without_a_copy():
    rnn, x, g = operands(40, True)
    for grad in STEPS.per_example(rnn, x, g, ROLES).values():
        turned = grad.mT if grad.ndim == 3 else grad
        assert turned.flatten(1).data_ptr() == turned.data_ptr()


def test_several_uses_are_one_if_they_have_the_same_columns():
    rnn, x, g = operands(5, True)
    _, other, more = operands(7, True)
    joined = STEPS.concatenate(rnn, [(x, g), (other, more)])
    assert joined is not None
    found = STEPS.squared_norms(rnn, *joined, ROLES)
    for role, one in by_definition(x, g).items():
        total = one + by_definition(other, more)[role]
        torch.testing.assert_close(found[role], total.flatten(1).square().sum(1))
    _, wider, _ = operands(7, True, width=4)
    assert STEPS.concatenate(rnn, [(x, g), (wider, more)]) is None


def uses_of(model, x):
    tape = Tape(len(x))
    with recording(find_units(model), tape):
        model(x)
    return [use for use in tape.uses if isinstance(use.module, nn.RNNBase)]


@pytest.mark.parametrize("kind", KINDS)
def test_one_use_for_each_direction_where_the_gradient_is_shared(kind):
    model = Reader(kind, bidirectional=True, num_layers=2, batch_first=True, given=False)
    uses = uses_of(model, batch(dtype=torch.float32)[0])
    assert {use.rule for use in uses} == {STEPS if kind in SHARED else LINEAR}
    assert len(uses) == (4 if kind in SHARED else 8)
    owned = [id(t.parameter) for use in uses for t in use.targets.values()]
    assert sorted(owned) == sorted(id(p) for p in model.rnn.parameters())


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_long_sequences_are_written_out(kind, bias):
    assert writing_is_cheaper(40, 5, 8)
    torch.manual_seed(0)
    model = Reader(kind, 2, 3, bidirectional=True, num_layers=2, bias=bias).double()
    agrees(model, CE, *batch(4, 40, 2), paths=("fast",))


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("kind", KINDS)
def test_any_of_the_parameters_may_be_frozen(kind, length):
    torch.manual_seed(0)
    names = ["weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"]
    for frozen in itertools.product([True, False], repeat=4):
        model = Reader(kind, 2, 3, batch_first=True, given=False).double()
        for name, out in zip(names, frozen, strict=True):
            getattr(model.rnn, name).requires_grad_(not out)
        agrees(model, CE, *batch(3, length, 2), paths=("fast",))


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("kind", SHARED)
def test_weights_tied_across_layers_and_roles(kind, length):
    """With a layer of another width, with the other weight, with a linear layer."""

    class Tied(Reader):
        def __init__(self, how):
            super().__init__(kind, 4, 4, batch_first=True, given=False)
            layer, extra = KINDS[kind]
            self.how, self.other = how, layer(2, 4, batch_first=True, **extra)
            self.linear = nn.Linear(4, len(self.rnn.weight_hh_l0))
            if how == "width":
                self.other.weight_hh_l0 = self.rnn.weight_hh_l0
                self.other.bias_ih_l0 = self.rnn.bias_ih_l0
            elif how == "role":
                self.rnn.weight_ih_l0 = self.rnn.weight_hh_l0
            elif how == "bias":
                self.rnn.bias_ih_l0 = self.rnn.bias_hh_l0
            else:
                self.linear.weight = self.rnn.weight_ih_l0

        def forward(self, x):
            more = self.other(x[..., :2])[0].mean((1, 2)) + self.linear(x).mean((1, 2))
            return super().forward(x) + more.unsqueeze(1)

    torch.manual_seed(0)
    for how in ("width", "role", "bias", "linear"):
        agrees(Tied(how).double(), CE, *batch(3, length, 4), paths=("fast",))


def test_the_input_may_be_changed_once_it_was_read():
    class Changes(Reader):
        def forward(self, x):
            seen = x * 1.0
            output, _ = self.rnn(seen)
            seen.zero_()
            return self.head(output.mean(1))

    torch.manual_seed(0)
    model = Changes("LSTM", batch_first=True, given=False).double()
    x, y = batch()
    found = clipped_sum(model, CE, x, y, 0.1, path="fast")
    model.__class__ = type(
        "Reads", (Reader,), {"forward": lambda m, x: m.head(m.rnn(x)[0].mean(1))}
    )
    expected = clipped_sum(model, CE, x, y, 0.1, path="fast")
    torch.testing.assert_close(found.flat(), expected.flat())
