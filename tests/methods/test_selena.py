"""SELENA: who sees what, soft labels from those who did not, and a model of these alone."""

import copy
import json

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import reticent as rt
from reticent.methods import selena
from reticent.methods.plain import SGD
from reticent.methods.selena import Selena

from .defences import (
    CLASSES,
    INPUTS,
    KINDS,
    SEED,
    TARGETS,
    N,
    OneByOne,
    attack_auc,
    dropping_net,
    overfitted,
    ranks,
    sgd,
    started,
    step_by,
    table_net,
    weights,
    wide_net,
)

METHOD = Selena(batch=8, models=5, excluded=2, split_steps=3, split_lr=0.1)


def after(training, releases):
    """The training, after so many of its releases."""
    for _, _ in zip(range(releases), training, strict=False):
        pass
    return training


def literal_exclusions(models=5, excluded=2):
    """[K, N] told again: of every record's K coins, the L smallest."""
    coins = rt.Coins.from_seed(SEED)
    flips = [coins.uniform((65536,), f"excluded from {k}", 0, 0, 0)[:N] for k in range(models)]
    left_out = torch.zeros(models, N, dtype=torch.bool)
    for i in range(N):
        for k in sorted(range(models), key=lambda k: float(flips[k][i]))[:excluded]:
            left_out[k, i] = True
    return left_out


def literal_batch(seen, k, release, size=8, models=5):
    """The first records that sub-model k may see, from its place in the release's order on."""
    order = ranks(N, "batch", release).tolist()
    begin = k * N // models
    turned = order[begin:] + order[:begin]
    return torch.tensor([i for i in turned if seen[k, i]][:size])


def literal_submodels(method, releases, build=table_net, data=(INPUTS, TARGETS)):
    """The first phase with modules and PyTorch's optimizer, one sub-model after the other."""
    seen, found = ~literal_exclusions(), []
    for k in range(method.models):
        model = build()
        optimizer = torch.optim.SGD(
            model.parameters(), lr=method.split_lr, momentum=method.split_momentum
        )
        for release in range(releases):
            batch = literal_batch(seen, k, release)
            step_by(optimizer, F.cross_entropy(model(data[0][batch]), data[1][batch]))
        found.append(model)
    return found


def literal_soft_labels(models):
    left_out = literal_exclusions()
    with torch.no_grad():
        said = torch.stack([model.eval()(INPUTS).softmax(1) for model in models])
    return torch.stack(
        [said[[k for k in range(len(models)) if left_out[k, i]], i].mean(0) for i in range(N)]
    )


def test_both_phases_are_those_of_the_paper_told_again():
    training = after(started(METHOD, steps=8), 3)
    models = literal_submodels(METHOD, 3)
    rows = torch.stack([weights(model) for model in models])
    torch.testing.assert_close(training.run.private["submodels"], rows, rtol=1e-5, atol=1e-6)
    soft = literal_soft_labels(models)
    result = training.finish()
    torch.testing.assert_close(training.run.private["soft labels"], soft, rtol=1e-5, atol=1e-6)
    student = table_net()
    optimizer = sgd(student.parameters())
    for release in range(3, 8):
        batch = ranks(N, "batch", release)[:8]
        said = student(INPUTS[batch]).log_softmax(1)
        step_by(optimizer, -(soft[batch] * said).sum(1).mean())
    torch.testing.assert_close(weights(result.model), weights(student), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("models", "excluded"), [(5, 2), (2, 1), (7, 6), (25, 10)])
def test_every_record_is_left_out_of_exactly_so_many(models, excluded):
    method = Selena(batch=4, models=models, excluded=excluded)
    training = after(started(method), 1)
    left_out = training.run.private["excluded"]
    assert left_out.shape == (models, N)
    assert (left_out.sum(0) == excluded).all()
    assert torch.equal(left_out, literal_exclusions(models, excluded))
    assert len({tuple(column.tolist()) for column in left_out.T}) > 1  # not the same ones for all


def test_the_model_stands_still_while_the_submodels_learn():
    training = after(started(METHOD, average=0.9), 3)
    state = training.run.state
    assert torch.equal(weights(training.run.model), weights(table_net()))
    assert not state.optimizer.state
    assert state.average.count == 0
    assert state.step == 3
    assert not torch.equal(training.run.private["submodels"][0], state.parameters.values)
    assert not torch.equal(weights(training.finish().model), weights(table_net()))


@pytest.mark.parametrize("mapped", [True, False])
def test_a_record_never_influences_a_submodel_that_must_not_see_it(monkeypatch, mapped):
    monkeypatch.setattr(selena, "can_be_mapped", lambda run, rows: mapped)
    first = after(started(METHOD, steps=30), 3).run.private
    touched = 0
    for record in range(0, N, 7):
        inputs, targets = INPUTS.clone(), TARGETS.clone()
        inputs[record], targets[record] = -inputs[record], (targets[record] + 1) % CLASSES
        other = after(started(METHOD, data=(inputs, targets), steps=30), 3).run.private
        same = (first["submodels"] == other["submodels"]).all(1)
        assert same[first["excluded"][:, record]].all()
        touched += int((~same).sum())
    assert touched  # those that do see it learn from it


@pytest.mark.parametrize("kind", ["table", "images"])
@pytest.mark.parametrize("microbatch", [512, 12])
def test_all_submodels_at_once_are_the_same_as_one_after_the_other(monkeypatch, kind, microbatch):
    build, data = KINDS[kind]
    found = []
    for mapped in (True, False):
        monkeypatch.setattr(selena, "can_be_mapped", lambda run, rows, mapped=mapped: mapped)
        training = after(started(METHOD, build(), data(), microbatch=microbatch), 3)
        found.append(training.run.private["submodels"])
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)
    rows = torch.stack([weights(m) for m in literal_submodels(METHOD, 3, build, data())])
    torch.testing.assert_close(found[0], rows, rtol=1e-4, atol=1e-5)


def test_recurrent_models_go_one_after_the_other_and_others_at_once():
    for kind, mapped in (("table", True), ("images", True), ("tokens", False)):
        build, data = KINDS[kind]
        training = after(started(METHOD, build(), data()), 2)
        assert bool(training.run.private["mapped"]) is mapped
    rows = torch.stack([weights(m) for m in literal_submodels(METHOD, 2, build, data())])
    torch.testing.assert_close(training.run.private["submodels"], rows, rtol=1e-4, atol=1e-5)


class Choosy(nn.Module):
    """Looks at a value, which vmap cannot."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.last = nn.Linear(6, CLASSES)

    def forward(self, inputs):
        if float(self.last.weight.detach().abs().max()) > 1e6:
            raise RuntimeError("too large")
        return self.last(inputs)


def test_a_model_that_cannot_be_mapped_is_not():
    training = after(started(METHOD, Choosy(), path="reference"), 3)
    assert not training.run.private["mapped"]
    rows = torch.stack([weights(m) for m in literal_submodels(METHOD, 3, Choosy)])
    torch.testing.assert_close(training.run.private["submodels"], rows, rtol=1e-5, atol=1e-6)


def test_soft_labels_come_only_from_those_who_did_not_see_the_record():
    def soft_labels(change=None):
        training = after(started(METHOD), 3)
        if change is not None:
            training.run.private["submodels"][change] += 1.0
        left_out = training.run.private["excluded"].clone()
        after(training, 1)
        return training.run.private["soft labels"], left_out

    plain, left_out = soft_labels()
    assert torch.allclose(plain.sum(1), torch.ones(N))
    for k in range(METHOD.models):
        changed, _ = soft_labels(k)
        moved = (changed != plain).any(1)
        assert torch.equal(moved, left_out[k])


def test_the_model_never_sees_a_label():
    plain = started(METHOD).finish()
    training = after(started(METHOD), 3)
    targets = training.run.records.targets
    targets.copy_((targets + 1) % CLASSES)
    assert torch.equal(weights(training.finish().model), weights(plain.model))


def test_labels_do_matter_before():
    other = started(METHOD, data=(INPUTS, (TARGETS + 1) % CLASSES)).finish()
    assert not torch.equal(weights(other.model), weights(started(METHOD).finish().model))


def test_submodels_are_let_go_once_they_have_spoken():
    training = after(started(METHOD), 4)
    assert set(training.run.private) == {"soft labels"}
    assert training.run.private["soft labels"].shape == (N, CLASSES)


def test_soft_labels_are_taken_without_dropout():
    training = after(started(METHOD, dropping_net()), 3)
    left_out = training.run.private["excluded"].clone()
    rows = training.run.private["submodels"].clone()
    after(training, 1)
    expected = torch.zeros(N, CLASSES)
    for k, row in enumerate(rows):
        model = dropping_net().eval()
        nn.utils.vector_to_parameters(row, model.parameters())
        with torch.no_grad():
            expected[left_out[k]] += model(INPUTS)[left_out[k]].softmax(1) / 2
    torch.testing.assert_close(training.run.private["soft labels"], expected, rtol=1e-5, atol=1e-6)
    assert all(module.training for module in training.run.model.modules())


def test_batches_are_uniform_over_what_a_submodel_sees():
    # How often each of a sub-model's records came in 400 draws of 8. With p = 8/|seen| a count has
    # variance 400·p·(1 − p); a deviation of 6.5 of its roots has probability below 1e-10 for one
    # record (binomial, normal to that order) and below 1e-7 for all of them.
    training = after(started(METHOD, steps=1000), 1)
    run, seen = training.run, ~training.run.private["excluded"]
    counts = torch.zeros(5, N)
    for release in range(400):
        run.release = release + 10
        run._drawn.clear()
        drawn = METHOD._batches(run)
        assert all(len(set(row.tolist())) == 8 for row in drawn)
        counts.scatter_add_(1, drawn, torch.ones(5, 8))
    assert (counts[~seen] == 0).all()
    for k in range(5):
        p = 8 / int(seen[k].sum())
        assert (counts[k, seen[k]] - 400 * p).abs().max() < 6.5 * (400 * p * (1 - p)) ** 0.5


def test_a_submodel_of_few_records_takes_all_of_them():
    method = Selena(batch=6, models=5, excluded=4, split_steps=2)
    few = (INPUTS[:30], TARGETS[:30])
    training = after(started(method, data=few), 1)
    smallest = int((~training.run.private["excluded"]).sum(1).min())
    assert smallest < 6
    training.run.release, training.run._drawn = 77, set()
    assert method._batches(training.run).shape == (5, smallest)
    training.finish()


def test_it_lowers_what_the_loss_betrays_of_a_model_that_overfits():
    # Seeded. The AUC of 150 members and 150 others has a standard deviation of at most 0.034 and a
    # difference of two at most 0.048; it is about 0.4 here, and less than 0.1 would be six
    # deviations below that: false alarms have a probability below 1e-6 even with other coins.
    inputs, targets = overfitted()
    halves = (inputs[:150], targets[:150]), (inputs[150:], targets[150:])
    found = []
    for method, steps in ((SGD(batch=32), 200), (Selena(batch=32, models=10, excluded=4), 400)):
        training = started(
            method,
            model=wide_net(),
            data=halves[0],
            steps=steps,
            optimizer=lambda p: torch.optim.Adam(p, lr=0.005),
        )
        found.append(attack_auc(training.finish().model, *halves))
    assert found[1] < found[0] - 0.1


@pytest.mark.parametrize("stop", [0, 1, 2, 3, 4, 5])
def test_a_stopped_run_goes_on_bit_for_bit(tmp_path, stop):
    # stopped before, at and after the change of phases
    def begun(folder, resume=False):
        torch.manual_seed(1234 if resume else 77)
        return started(
            METHOD,
            model=dropping_net(),
            steps=7,
            folder=tmp_path / folder,
            resume=resume,
            checkpoint_every=0,
            coins=None if resume else rt.Coins.from_seed(SEED),
        )

    whole = begun("whole")
    whole.finish()
    after(begun("half"), stop + 1)
    resumed = begun("half", resume=True)
    resumed.finish()
    assert torch.equal(weights(resumed.run.model), weights(whole.run.model))
    assert torch.equal(resumed.run.private["soft labels"], whole.run.private["soft labels"])


@pytest.mark.parametrize("kind", KINDS)
def test_tables_images_and_tokens(kind):
    build, data = KINDS[kind]
    result = started(METHOD, model=build(), data=data(), steps=5).finish()
    moved = weights(result.model) - weights(build())
    assert moved.isfinite().all()
    assert moved.norm() > 0


def test_models_with_several_inputs_and_tied_parameters():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.first = nn.Linear(3, 3)
            self.second = nn.Linear(3, 3)
            self.second.weight = self.first.weight

        def forward(self, a, b):
            return self.first(a) + self.second(b).tanh()

    data = ((INPUTS[:, :3], INPUTS[:, 3:]), TARGETS)
    training = after(started(METHOD, Two(), data), 3)
    assert training.run.private["mapped"]
    seen, model = ~literal_exclusions(), Two()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for release in range(3):
        batch = literal_batch(seen, 4, release)
        outputs = model(INPUTS[batch, :3], INPUTS[batch, 3:])
        step_by(optimizer, F.cross_entropy(outputs, TARGETS[batch]))
    torch.testing.assert_close(
        training.run.private["submodels"][4], weights(model), rtol=1e-5, atol=1e-6
    )
    training.finish()


def test_the_phases_share_the_releases():
    assert Selena(batch=1).split(10) == 5
    assert Selena(batch=1, share=0.9).split(2) == 1
    assert Selena(batch=1, share=0.01).split(50) == 1
    assert Selena(batch=1, split_steps=7).split(10) == 7
    training = started(copy.copy(METHOD), steps=5)
    phases = ["soft labels" in training.run.private for _ in training]
    assert phases == [False, False, False, True, True]


def test_the_report_states_no_epsilon_and_nothing_private(tmp_path):
    result = started(METHOD, folder=tmp_path / "run").finish()
    assert result.epsilon == float("inf")
    run = json.loads((tmp_path / "run" / "run.json").read_text())
    assert run["guarantee"] == "empirical"
    assert run["statement"]["epsilon"] is None
    assert run["method"] == {"name": "selena", **METHOD.options()}
    assert Selena(**METHOD.options()) == METHOD
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == [
        "model.safetensors",
        "run.json",
    ]


def test_a_data_set_is_trained_on_like_tensors():
    tensors, items = started(METHOD), started(METHOD, data=OneByOne())
    assert torch.equal(weights(tensors.finish().model), weights(items.finish().model))
