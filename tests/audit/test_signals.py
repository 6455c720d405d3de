import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from reticent.audit.signals import Evidence, Signals, confidence, look_inside, query
from reticent.errors import DataError, ModelError, OptionError


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(6, 5), nn.Tanh(), nn.Dropout(0.5), nn.Linear(5, 3))


def records(n=17, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, 2, 3, generator=generator), torch.randint(0, 3, (n,), generator=generator)


def test_statistics_by_their_definitions():
    logits = torch.randn(40, 5, generator=torch.Generator().manual_seed(3)) * 4
    labels = torch.arange(40) % 5
    said = Signals(logits, labels)
    p = logits.double().softmax(1)
    own = p[torch.arange(40), labels]
    assert torch.allclose(said.losses, F.cross_entropy(logits.double(), labels, reduction="none"))
    assert torch.allclose(said.confidence, own.log() - (p.sum(1) - own).log(), atol=1e-9)
    assert torch.allclose(said.posteriors, p)
    assert torch.equal(said.correct, logits.argmax(1) == labels)
    both = torch.stack([logits, -logits])
    assert torch.equal(confidence(both, labels)[1], confidence(-logits, labels))


def test_nothing_is_lost_where_the_model_is_sure():
    # 1 − p is 1e-26 here, far below what a probability can show
    said = Signals(torch.tensor([[60.0, 0.0], [0.0, 60.0], [61.0, 0.0]]), torch.tensor([0, 0, 0]))
    assert said.confidence.tolist() == [60, -60, 61]
    assert said.losses[0] == pytest.approx(math.exp(-60), rel=1e-9)
    assert said.losses[1] == pytest.approx(60)
    assert said.losses[2] < said.losses[0]


@pytest.mark.parametrize("batch", [1, 4, 17, 100])
def test_asking_in_batches_changes_nothing_and_modes_are_restored(batch):
    model, (x, y) = network(), records()
    model.train()
    model[1].eval()  # a part in another mode than the rest
    said = query(model, x, y, batch=batch)
    assert [m.training for m in model] == [True, False, True, True, True]
    assert model.training
    with torch.no_grad():
        assert torch.allclose(said.logits, model.eval()(x), atol=1e-6)
    assert torch.equal(said.labels, y)
    assert not said.logits.requires_grad


def test_inputs_may_be_trees():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = network()

        def forward(self, left, right):
            return self.inner(left + right)

    model, (x, y) = Two(), records()
    alone = query(model.inner, 3 * x, y).logits
    assert torch.allclose(query(model, (x, 2 * x), y, batch=5).logits, alone, atol=1e-6)
    assert torch.allclose(query(model, {"left": x, "right": 2 * x}, y).logits, alone, atol=1e-6)


def test_the_inside_is_what_autograd_says():
    model, (x, y) = network(), records()
    model.train()
    inside = look_inside(model, x, y, batch=4)
    assert model.training
    assert all(p.grad is None for p in model.parameters())
    model.eval()
    for i in range(len(x)):
        model.zero_grad()
        F.cross_entropy(model(x[i : i + 1]), y[i : i + 1]).backward()
        whole = math.sqrt(sum(float((p.grad**2).sum()) for p in model.parameters()))
        assert float(inside.norms[i]) == pytest.approx(whole, rel=1e-4)
        outer = inside.errors[i][:, None] * inside.embeddings[i]
        assert torch.allclose(model[4].weight.grad, outer, atol=1e-6)
        assert torch.allclose(model[4].bias.grad, inside.errors[i], atol=1e-6)
        assert float(inside.last_norms[i]) == pytest.approx(float(outer.norm()), rel=1e-4)


def test_the_last_layer_is_found_by_use_not_by_place():
    class Crossed(nn.Module):
        def __init__(self):
            super().__init__()
            self.out = nn.Linear(4, 3)
            self.first = nn.Linear(6, 4)

        def forward(self, x):
            return self.out(self.first(x.flatten(1)).relu()).log_softmax(1)

    model, (x, y) = Crossed(), records()
    inside = look_inside(model, x, y)
    assert torch.allclose(inside.embeddings, model.first(x.flatten(1)).relu(), atol=1e-6)
    with pytest.raises(ModelError, match="'first' does not make"):
        look_inside(model, x, y, layer="first")
    with pytest.raises(OptionError, match="layer"):
        look_inside(model, x, y, layer="second")
    with pytest.raises(ModelError, match=r"no nn\.Linear"):
        look_inside(nn.Sequential(nn.Conv1d(2, 3, 3), nn.Flatten()), x, y)


def test_what_is_refused():
    x, y = records()
    with pytest.raises(DataError, match="shapes"):
        Signals(torch.zeros(3, 2), torch.zeros(4))
    with pytest.raises(DataError, match="at least two classes"):
        Signals(torch.zeros(3, 1), torch.zeros(3))
    with pytest.raises(DataError, match="from 0 to 5"):
        Signals(torch.zeros(2, 2), torch.tensor([0, 5]))
    with pytest.raises(DataError, match="diverged"):
        Signals(torch.tensor([[0.0, math.nan]]), torch.tensor([0]))
    with pytest.raises(ModelError, match=r"\[n, classes\]"):
        query(nn.Identity(), x, y)
    with pytest.raises(OptionError, match="batch"):
        query(network(), x, y, batch=0)
    with pytest.raises(DataError, match="0 records"):
        query(network(), x[:0], y[:0])


def test_evidence_must_fit_together():
    target = Signals(torch.zeros(4, 3), torch.zeros(4))
    members, logits = torch.tensor([True, False, True, False]), torch.zeros(2, 4, 3)
    seen = torch.zeros(2, 4, dtype=torch.bool)
    others = Signals(torch.zeros(5, 3), torch.zeros(5))
    assert Evidence(target, members, logits, seen, others, torch.zeros(2, 5, 3))
    for wrong in (
        {"members": members.long()},
        {"members": members[:3]},
        {"shadow_members": None},
        {"shadow_members": seen[:1]},
        {"shadow_members": seen.long()},
        {"shadow_logits": torch.zeros(2, 4, 2)},
        {"shadow_population": torch.zeros(3, 5, 3)},
        {"shadow_population": torch.zeros(2, 4, 3)},
        {"population": None},
        {"population": Signals(torch.zeros(5, 2), torch.zeros(5))},
        {"shadow_logits": torch.full((2, 4, 3), math.inf)},
    ):
        given = {
            "members": members,
            "shadow_logits": logits,
            "shadow_members": seen,
            "population": others,
            "shadow_population": torch.zeros(2, 5, 3),
        }
        with pytest.raises(DataError):
            Evidence(target, **{**given, **wrong})


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_device_says_the_same():
    model, (x, y) = network(), records()
    here, inside = query(model, x, y), look_inside(model, x, y)
    there, within = query(model, x, y, device="cuda"), look_inside(model, x, y, device="cuda")
    assert there.logits.device.type == "cpu"
    assert torch.allclose(here.logits, there.logits, atol=1e-3)
    assert torch.allclose(inside.norms, within.norms, rtol=1e-2)
    assert torch.allclose(inside.errors, within.errors, atol=1e-3)
