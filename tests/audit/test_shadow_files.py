"""Shadow models on the disk: kept, found again, and never mixed up."""

import stat

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from reticent.audit.shadows import (
    ShadowPlan,
)
from reticent.errors import OptionError

from .shadow_problem import MEMBERS, POOL, K, build, files, same, shadows

# -- files ----------------------------------------------------------------------------------------


def test_kept_models_are_found_again(tmp_path):
    folder = tmp_path / "kept"
    first = shadows(folder=folder)
    assert len(files(folder)) == K
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in files(folder)} == {0o600}
    seen = []
    again = shadows(folder=folder, progress=lambda done, total: seen.append((done, total)))
    assert again.trained == 0
    assert again.notes == ()
    assert seen == [(30, 30)]
    assert same(first, again)


def test_half_of_the_files_lost(tmp_path):
    first = shadows(folder=tmp_path, together=1)
    for path in files(tmp_path)[::2]:
        path.unlink()
    again = shadows(folder=tmp_path, together=1)
    assert again.trained == K // 2
    assert again.notes == ()
    assert same(first, again)
    assert len(files(tmp_path)) == K


def harm(path, how):
    content = path.read_bytes()
    if how == "truncated":
        path.write_bytes(content[: len(content) // 2])
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "flipped":
        path.write_bytes(content[:-3] + bytes([content[-3] ^ 1]) + content[-2:])
    elif how == "foreign":
        save_file({"a": torch.ones(2)}, path)
    elif how == "folder":
        path.unlink()
        path.mkdir()


@pytest.mark.parametrize("how", ["truncated", "empty", "flipped", "foreign", "another"])
def test_a_harmed_file_is_noticed_and_made_anew(tmp_path, how):
    first = shadows(folder=tmp_path, together=1)
    path, other = files(tmp_path)[2:4]
    if how == "another":
        path.write_bytes(other.read_bytes())
    harm(path, how)
    again = shadows(folder=tmp_path, together=1)
    assert again.trained == 1
    assert len(again.notes) == 1
    assert path.name in again.notes[0]
    assert "trained anew" in again.notes[0]
    assert same(first, again)
    assert shadows(folder=tmp_path).trained == 0


def test_a_folder_in_place_of_a_file_is_an_error_that_names_it(tmp_path):
    shadows(folder=tmp_path)
    harm(files(tmp_path)[0], "folder")
    with pytest.raises(OptionError, match=r"folder.*cannot be written to"):
        shadows(folder=tmp_path)


@pytest.mark.parametrize(("stop_at", "kept"), [(3, 0), (12, 2), (25, 4)])
def test_a_killed_process_loses_the_group_under_way(tmp_path, stop_at, kept):
    def stop(done, total):
        if done > stop_at:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        shadows(folder=tmp_path, together=2, progress=stop)
    assert len(files(tmp_path)) == kept
    assert len(list(tmp_path.iterdir())) == kept
    seen = []
    resumed = shadows(folder=tmp_path, together=2, progress=lambda done, _: seen.append(done))
    assert resumed.trained == K - kept
    assert seen[-1] == 30
    assert seen == sorted(seen)
    assert same(resumed, shadows(together=2))


OTHERS = {
    "plan": {"plan": ShadowPlan(batch=8, steps=5, lr=0.31)},
    "steps": {"plan": ShadowPlan(batch=8, steps=6, lr=0.3, momentum=0.5)},
    "seed": {"plan": ShadowPlan(batch=8, steps=5, lr=0.3, momentum=0.5, seed=1)},
    "weights": {"make": lambda k: build(k + 1)},
    "architecture": {"make": lambda k: nn.Sequential(*build(k), nn.ReLU())},
    "members": {"members": ~MEMBERS},
    "records": {"data": (POOL[0] + 1e-6, POOL[1])},
    "labels": {"data": (POOL[0], 1 - POOL[1])},
    "loss": {"loss_fn": nn.CrossEntropyLoss(label_smoothing=0.1)},
}


@pytest.mark.parametrize("what", OTHERS)
def test_models_of_another_making_are_not_taken_for_these(tmp_path, what):
    shadows(folder=tmp_path)
    names = {path.name for path in files(tmp_path)}
    other = shadows(folder=tmp_path, **OTHERS[what])
    assert other.trained == K
    if what in (
        "records",
        "labels",
    ):  # no name tells of them: these files are replaced, with a note
        assert {path.name for path in files(tmp_path)} == names
        assert len(other.notes) == K
    else:
        assert shadows(folder=tmp_path).trained == 0


def test_one_record_more_in_one_model_concerns_that_model(tmp_path):
    shadows(folder=tmp_path)
    members = MEMBERS.clone()
    members[3, 5] = ~members[3, 5]
    assert shadows(folder=tmp_path, members=members).trained == 1


def test_epochs_that_come_to_another_number_of_steps_are_another_making(tmp_path):
    plan = ShadowPlan(batch=8, epochs=1)
    shadows(folder=tmp_path, plan=plan)
    members = MEMBERS.clone()
    members[1:] = True
    assert plan.steps_for(members) != plan.steps_for(MEMBERS)
    assert shadows(folder=tmp_path, plan=plan, members=members).trained == K
