"""Whose records a folder is about, and what was ever begun on them."""

from __future__ import annotations

import json
import stat

import pytest

from reticent.comparison.folder import alone, check_records, note_plan, spent_in
from reticent.comparison.spending import total
from reticent.errors import CheckpointError
from reticent.reproduction.jobs import Kept
from reticent.reproduction.own_records import RUNS_FOLDER, run_name
from reticent.reproduction.running import run_jobs
from reticent.training.checkpoint import CHECKPOINT

from .small import own_plan


def test_a_second_command_waits_outside(tmp_path):
    with (
        alone(tmp_path),
        pytest.raises(CheckpointError, match="another comparison"),
        alone(tmp_path),
    ):
        pytest.fail("two at once")
    with alone(tmp_path):
        pass


def test_a_folder_belongs_to_its_records(tmp_path):
    check_records(tmp_path, "one")
    assert stat.S_IMODE((tmp_path / "records.json").stat().st_mode) == 0o600
    check_records(tmp_path, "one")
    with pytest.raises(CheckpointError, match="have changed"):
        check_records(tmp_path, "two")
    with pytest.raises(CheckpointError, match="own records"):
        check_records(tmp_path, None)
    (tmp_path / "records.json").write_text("{}")
    with pytest.raises(CheckpointError, match="cannot be read"):
        check_records(tmp_path, "one")


@pytest.mark.parametrize("trace", ["plan.json", "runs", "begun"])
@pytest.mark.parametrize("identity", ["one", None])
def test_a_folder_whose_fingerprint_is_gone_belongs_to_nobody(tmp_path, trace, identity):
    (tmp_path / trace).mkdir()
    with pytest.raises(CheckpointError, match="nobody can tell whose records"):
        check_records(tmp_path, identity)
    assert not (tmp_path / "records.json").exists()


def test_a_folder_of_public_jobs_takes_no_private_ones(tmp_path):
    check_records(tmp_path, None)
    (tmp_path / "jobs").mkdir()
    check_records(tmp_path, None)
    with pytest.raises(CheckpointError, match="public data"):
        check_records(tmp_path, "one")


def test_everything_that_was_begun_counts(tmp_path):
    out = tmp_path / "out"
    plan = own_plan(tmp_path, ["dpsgd", "sgd"], (1.0, 2.0))
    jobs = plan.jobs()
    note_plan(out, jobs)
    note_plan(out, jobs)  # the same command again plans nothing new
    assert len(json.loads((out / "plan.json").read_text())["groups"]) == 1
    assert stat.S_IMODE((out / "plan.json").stat().st_mode) == 0o600
    assert spent_in(out)[0].spent == ()  # nothing was begun
    run_jobs(jobs[:1], out, device="cpu")
    (group,) = spent_in(out)
    assert [one.method for one in group.spent] == ["dpsgd"]
    assert not group.whole  # it was given up, so far
    run_jobs(jobs, out, device="cpu")
    (group,) = spent_in(out)
    assert group.whole
    assert [one.method for one in group.spent] == ["dpsgd", "dpsgd", "sgd"]
    found = total([group])
    assert found.unbounded == ("sgd",)
    assert found.models == 2
    assert found.epsilon < found.added <= 3.0
    # a narrower command later: what was begun before counts all the same
    more = own_plan(tmp_path, ["sign-adam"], (1.0,))
    note_plan(out, more.jobs())
    groups = spent_in(out)
    assert [len(group.spent) for group in groups] == [3, 0]
    # an outcome that was not written down, and a run that was only begun
    Kept(out).path(jobs[0].key).unlink()
    assert spent_in(out)[0] == group
    folder = out / RUNS_FOLDER / run_name(more.jobs()[0])
    folder.mkdir()
    (folder / CHECKPOINT).touch()
    begun = spent_in(out)[1]
    assert [one.ledger for one in begun.spent] == [None]
    assert not begun.whole
    both = total(spent_in(out))
    assert both.unfinished == 1
    assert both.epsilon == pytest.approx(found.epsilon + 1.0)


def test_a_plan_that_cannot_be_read_is_no_plan(tmp_path):
    (tmp_path / "plan.json").write_text("[]")
    with pytest.raises(CheckpointError, match="what was spent on these records is not known"):
        spent_in(tmp_path)


@pytest.mark.parametrize("paid", ["runs", "jobs", "begun"])
def test_models_without_a_plan_are_not_forgotten(tmp_path, paid):
    (tmp_path / paid / "dpsgd-eps3-seed0").mkdir(parents=True)
    with pytest.raises(CheckpointError, match=f"is missing, but models left traces in '.*{paid}'"):
        spent_in(tmp_path)
