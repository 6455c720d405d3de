"""What made-up records say of a training before it costs anything."""

import warnings

import pytest
import torch
from torch import nn

import reticent as rt
from reticent.errors import ModelError, OptionError, ProbeWarning

from .problem import INPUTS, TARGETS, model, options


class Answers(nn.Module):
    """Says what a function makes of a linear layer's scores."""

    def __init__(self, function):
        super().__init__()
        self.linear = nn.Linear(5, 2)
        self.function = function

    def forward(self, x):
        return self.function(self.linear(x))


def test_a_dict_of_outputs_is_named_and_not_the_loss():
    net = Answers(lambda scores: {"logits": scores})
    with pytest.raises(ModelError, match=r"the model returns a dict.*its 'logits'"):
        rt.train(net, (INPUTS, TARGETS), **options())
    own = rt.train(
        net,
        (INPUTS, TARGETS),
        **options(loss_fn=lambda out, y: nn.functional.cross_entropy(out["logits"], y)),
    )
    assert own.steps == options()["steps"]


def test_a_loss_that_cannot_take_the_targets_says_so_itself():
    pairs = (INPUTS, TARGETS.float())  # shape (), where the outputs have (1,)
    with pytest.raises(
        ModelError, match=r"BCEWithLogitsLoss cannot take .* \(1,\).*outputs\' shape \(1,\)"
    ):
        rt.train(nn.Linear(5, 1), pairs, **options(loss_fn=nn.BCEWithLogitsLoss()))


def test_what_a_model_raises_keeps_its_kind():
    def fail(scores):
        raise KeyError("oops")

    with pytest.raises(ModelError, match=r"Answers cannot take .*KeyError: 'oops'"):
        rt.train(Answers(fail), (INPUTS, TARGETS), **options())


def test_a_loss_apart_from_the_model_is_refused():
    with pytest.raises(ModelError, match="does not depend on what the model says"):
        rt.train(model(), (INPUTS, TARGETS), **options(loss_fn=lambda out, y: torch.tensor(1.0)))


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        (lambda out, y: out.sum() * float("nan"), "the loss is not finite"),
        (lambda out, y: (out * 0).sum(), "no gradient is other than 0"),
    ],
)
def test_a_budget_that_would_buy_nothing_is_warned_of(loss, words):
    with pytest.warns(ProbeWarning, match=words):
        rt.run(model(), (INPUTS, TARGETS), **options(loss_fn=loss))


def test_parameters_that_the_loss_does_not_depend_on_are_named():
    net = Answers(lambda scores: scores)
    net.aside = nn.Linear(3, 3)
    with pytest.warns(ProbeWarning, match=r"'aside\.weight', 'aside\.bias'.*requires_grad"):
        rt.run(net, (INPUTS, TARGETS), **options())
    net.aside.requires_grad_(False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rt.run(net, (INPUTS, TARGETS), **options())


def test_an_optimizer_of_some_parameters_is_refused_however_it_is_made():
    net = model()
    some = [next(net.parameters())]
    with pytest.raises(OptionError, match="does not hold the trainable parameter"):
        rt.run(net, (INPUTS, TARGETS), **options(optimizer=lambda p: torch.optim.SGD(some, 0.1)))


def test_a_function_that_knows_the_parameters_trains_them():
    def trained(optimizer_of):
        torch.manual_seed(0)
        net = model()
        made = options(optimizer=optimizer_of(net), coins=rt.Coins.from_seed(1))
        rt.train(net, (INPUTS, TARGETS), **made)
        return torch.cat([p.detach().flatten() for p in net.parameters()])

    given = trained(lambda net: lambda p: torch.optim.SGD(p, lr=0.1))
    known = trained(lambda net: lambda p: torch.optim.SGD(net.parameters(), lr=0.1))
    assert torch.allclose(given, known, atol=1e-6)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ((INPUTS, TARGETS + 5), "Target 5 is out of bounds|Target 6 is out of bounds"),
        ((INPUTS[:, :3], TARGETS), r"shape \(3,\)"),
        ((INPUTS.double(), TARGETS), "computes in float32"),
    ],
)
def test_held_out_records_that_do_not_fit_are_explained(data, words):
    with pytest.raises(ModelError, match=words):
        rt.evaluate(model(), data)


def test_sparse_gradients_of_embeddings_are_looked_at_too():
    words, labels = torch.randint(0, 10, (120, 3)), TARGETS
    net = nn.Sequential(nn.Embedding(10, 4, sparse=True), nn.Flatten(), nn.Linear(12, 2))
    with warnings.catch_warnings():
        warnings.simplefilter("error", ProbeWarning)
        rt.run(net, (words, labels), **options())
    net[2].weight.data.zero_()
    net[2].requires_grad_(False)
    with pytest.warns(ProbeWarning, match="no gradient is other than 0"):
        rt.run(net, (words, labels), **options())


def test_a_shortage_of_memory_is_no_fault_of_the_records():
    def short(scores):
        raise torch.OutOfMemoryError("CUDA out of memory")

    for call in (
        lambda net: rt.evaluate(net, (INPUTS, TARGETS)),
        lambda net: rt.run(net, (INPUTS, TARGETS), **options()),
    ):
        with pytest.raises(torch.OutOfMemoryError):
            call(Answers(short))
