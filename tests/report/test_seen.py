"""What a run keeps for its report: counts by class, and gradient norms where they are asked for."""

import numpy as np
import pytest
import torch
from sklearn.metrics import confusion_matrix

import reticent as rt
from reticent.training.evaluation import class_counts
from reticent.training.norms_seen import NormsSeen

from .runs import CLASSES, records


def test_counts_by_class_are_those_of_scikit_learn():
    torch.manual_seed(1)
    model, (inputs, labels) = torch.nn.Linear(4, 3), records(2500, 2)  # more than one chunk
    model.train()
    found = class_counts(model, (inputs, labels), CLASSES)
    expected = confusion_matrix(labels, model(inputs).argmax(1), labels=range(3))
    assert found == {"classes": list(CLASSES), "confusion": expected.tolist()}
    assert model.training
    assert class_counts(model, (inputs, labels), ["too", "few"])["classes"] == ["0", "1", "2"]
    assert class_counts(torch.nn.Linear(4, 1), (inputs, inputs[:, :1])) is None


def test_a_histogram_of_norms_is_numpys():
    generator = torch.Generator().manual_seed(0)
    parts = [torch.randn(300, generator=generator).mul(3).exp() for _ in range(3)]
    norms = torch.cat(parts).double().numpy()
    seen = NormsSeen()
    assert seen.to_json() is None
    for part, bound in zip(parts, (0.5, 1.0, 2.0), strict=True):
        seen.add(part, bound)
    found = seen.to_json()
    expected, _ = np.histogram(norms, bins=np.array(seen.edges))
    filled = np.flatnonzero(expected)
    assert found["counts"] == expected[filled[0] : filled[-1] + 1].tolist()
    assert found["edges"] == seen.edges[filled[0] : filled[-1] + 2]
    above = sum(int((p > b).sum()) for p, b in zip(parts, (0.5, 1.0, 2.0), strict=True))
    assert (found["records"], found["above"], found["bound"]) == (900, above, [0.5, 2.0])


def test_norms_beyond_all_bins_are_counted_at_the_ends():
    seen = NormsSeen()
    seen.add(torch.tensor([0.0, 1e-30, 1e30, float("inf"), float("nan")]), 1.0)
    found = seen.to_json()
    assert (found["counts"][0], found["counts"][-1], found["records"]) == (2, 3, 5)
    assert found["above"] == 3


@pytest.mark.parametrize("asked", [True, False])
def test_a_run_keeps_norms_only_if_it_is_told_to(asked, monkeypatch):
    seen = []
    plain = NormsSeen.add
    monkeypatch.setattr(
        NormsSeen, "add", lambda self, n, b: (seen.append(n.clone()), plain(self, n, b))[1]
    )
    training = rt.run(
        torch.nn.Linear(4, 3),
        records(200, 0),
        method=rt.DPSGD(batch=50, clip=0.7, noise=4.0),
        budget=rt.Budget(epsilon=3, delta=1e-3),
        steps=3,
        optimizer=lambda params: torch.optim.SGD(params, lr=0.1),
        device="cpu",
        private_diagnostics=asked,
    )
    result = training.finish()
    if not asked:
        assert training.run.norms_seen is None
        assert not seen
        return
    found = training.run.norms_seen.to_json()
    assert found["records"] == sum(map(len, seen)) > 60
    assert len(seen) == 3
    assert found["bound"] == [0.7, 0.7]
    # the norm of a linear layer's gradient: √(|x|² + 1)·|p − y|, at least for one bound check
    assert float(torch.cat(seen).max()) < 2**0.5 * (1 + float(records(200, 0)[0].norm(dim=1).max()))
    assert "gradient_norms" not in str(result.to_json())


def test_norms_of_records_that_were_left_out_are_not_counted():
    training = rt.run(
        torch.nn.Linear(4, 3),
        records(40, 0),
        method=rt.DPSGD(batch=10, clip=1.0, noise=4.0),
        budget=rt.Budget(epsilon=3, delta=1e-3),
        steps=2,
        optimizer=lambda params: torch.optim.SGD(params, lr=0.1),
        device="cpu",
        private_diagnostics=True,
    )
    run = training.run
    run.begin_release()
    everyone = torch.arange(40)
    norms = run.clipped_sum(everyone, rt.gradients.Flat(1.0)).norms
    least = torch.full((40,), float(norms.median()))
    before = run.norms_seen.to_json()["records"]
    run.clipped_sum(everyone, rt.gradients.Flat(1.0), "other", least)
    assert before == 40
    assert run.norms_seen.to_json()["records"] - before == int((norms >= least).sum())
