"""Run folders, checkpoints, and going on where a run was stopped."""

import json
import os
import signal
import stat
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.utils.data import Dataset

import reticent as rt
from reticent.errors import CheckpointError, OptionError
from reticent.files import write_atomically
from reticent.privacy import SampledGaussian
from reticent.training.checkpoint import CHECKPOINT, write_checkpoint

from .problem import BUDGET, INPUTS, TARGETS, model, options, sgd, weights


def test_the_run_folder_says_everything_but_the_key(tmp_path):
    coins = rt.Coins.from_seed(987654321)
    result = rt.train(model(), (INPUTS, TARGETS), **options(folder=tmp_path / "run", coins=coins))
    run = json.loads((tmp_path / "run" / "run.json").read_text())
    assert run["statement"]["epsilon"] == result.epsilon
    assert run["guarantee"] == "differential-privacy"
    assert rt.Ledger.load(tmp_path / "run" / "run.json").epsilon(1e-3) == result.epsilon
    text = (tmp_path / "run" / "run.json").read_text()
    assert coins.secret().hex() not in text
    assert "987654321" not in text
    assert not (tmp_path / "run" / CHECKPOINT).exists()
    saved = load_file(tmp_path / "run" / "model.safetensors")
    assert all(torch.equal(saved[k], v) for k, v in result.model.state_dict().items())
    again = rt.load_weights(model(3), tmp_path / "run")
    assert torch.equal(again(INPUTS), result.model(INPUTS))
    with pytest.raises(CheckpointError, match="finished run"):
        rt.run(model(), (INPUTS, TARGETS), **options(folder=tmp_path / "run"))


@pytest.mark.parametrize("stop", [0, 1, 5, 7])
@pytest.mark.parametrize(
    "optimizer", [sgd, lambda p: torch.optim.Adam(p, lr=0.05)], ids=["sgd", "adam"]
)
def test_a_stopped_run_goes_on_bit_for_bit(tmp_path, stop, optimizer):
    def net():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(5, 6), nn.Dropout(0.5), nn.Linear(6, 2))

    def started(folder, resume=False):
        torch.manual_seed(77 if not resume else 1234)
        return rt.run(
            net(),
            (INPUTS, TARGETS),
            **options(
                folder=folder,
                resume=resume,
                optimizer=optimizer,
                checkpoint_every=0,
                method=rt.DPSGD(
                    batch=30, clip=rt.Quantile(initial=1.0, count_noise=5.0), noise=2.0
                ),
                average=0.9,
                scheduler=lambda o: torch.optim.lr_scheduler.StepLR(o, 3),
                coins=None if resume else rt.Coins.from_seed(5),
            ),
        )

    torch.manual_seed(77)
    whole = started(tmp_path / "whole").finish()
    half = started(tmp_path / "half")
    for _, _ in zip(range(stop + 1), half, strict=False):
        pass
    assert stat.S_IMODE(os.stat(tmp_path / "half" / CHECKPOINT).st_mode) == 0o600
    resumed = started(tmp_path / "half", resume=True).finish()
    assert torch.equal(weights(resumed), weights(whole))
    assert resumed.ledger.to_json() == whole.ledger.to_json()
    assert not (tmp_path / "half" / CHECKPOINT).exists()


KILLED = """
import sys, torch, time
sys.path.insert(0, {here!r})
import reticent as rt
from problem import INPUTS, TARGETS, model, options
torch.manual_seed(3)
training = rt.run(model(), (INPUTS, TARGETS), **options(
    steps=60, folder={folder!r}, checkpoint_every=0, budget=rt.Budget(30, 1e-3)))
for release in training:
    print(release.step, flush=True)
    time.sleep(0.01)
"""


def test_a_killed_process_can_be_resumed(tmp_path):
    plain = options(steps=60, budget=rt.Budget(30, 1e-3))
    whole = rt.train(model(), (INPUTS, TARGETS), **plain)
    script = KILLED.format(here=os.path.dirname(__file__), folder=str(tmp_path / "run"))
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        if int(line) >= 20:
            process.send_signal(signal.SIGKILL)
            break
    process.wait()
    assert not (tmp_path / "run" / "run.json").exists()
    with pytest.raises(CheckpointError, match="unfinished run"):
        rt.run(model(), (INPUTS, TARGETS), **{**plain, "folder": tmp_path / "run"})
    resumed = rt.train(
        model(), (INPUTS, TARGETS), **{**plain, "folder": tmp_path / "run", "resume": True}
    )
    assert torch.equal(weights(resumed), weights(whole))
    assert resumed.ledger.to_json() == whole.ledger.to_json()


def test_a_run_that_began_with_a_paid_ledger_goes_on_with_it(tmp_path):
    """The noise was set from what the ledger had left; on resuming it must come out the same."""

    def paid():
        ledger = rt.Ledger(BUDGET, planned=True)
        ledger.charge(SampledGaussian(rate=1, multiplier=8), "something else")
        return ledger

    def started(folder, **more):
        coins = rt.Coins.from_seed(3)
        method = rt.DPSGD(batch=len(INPUTS), clip=1.0)  # of all records: calibrated in no time
        more = {"method": method, "coins": coins, "ledger": paid(), **more}
        return rt.run(model(), (INPUTS, TARGETS), **options(folder=folder, **more))

    whole = started(tmp_path / "whole").finish()
    next(iter(started(tmp_path / "half", checkpoint_every=0)))
    with pytest.raises(CheckpointError, match="other method"):
        started(tmp_path / "half", resume=True, ledger=None)
    given = paid()
    resumed = started(tmp_path / "half", resume=True, ledger=given).finish()
    assert torch.equal(weights(resumed), weights(whole))
    assert resumed.ledger.to_json() == whole.ledger.to_json()
    assert [entry.purpose for entry in resumed.ledger.entries] == ["something else", "training"]
    assert given.to_json() == whole.ledger.to_json()  # a third run on it goes on from there
    assert not given.affords(SampledGaussian(rate=1, multiplier=8))


def test_a_ledger_that_others_used_meanwhile_does_not_resume_a_run(tmp_path):
    """Same releases, same purpose: what another run paid is not what this one had paid before."""
    ledger = rt.Ledger(BUDGET)
    next(iter(rt.run(model(), (INPUTS, TARGETS), **options(folder=tmp_path, ledger=ledger))))
    assert ledger.entries
    with pytest.raises(CheckpointError, match=r"ledger has 1 of 'training'.*as it was when"):
        rt.run(model(), (INPUTS, TARGETS), **options(folder=tmp_path, ledger=ledger, resume=True))


def test_checkpoints_that_cannot_be_used_are_refused(tmp_path):
    folder = tmp_path / "run"
    training = rt.run(model(), (INPUTS, TARGETS), **options(folder=folder, checkpoint_every=0))
    next(iter(training))
    with pytest.raises(CheckpointError, match=r"other steps \(8, not 9\)"):
        rt.run(model(), (INPUTS, TARGETS), **options(folder=folder, resume=True, steps=9))
    with pytest.raises(CheckpointError, match="other model"):
        rt.run(nn.Linear(5, 2), (INPUTS, TARGETS), **options(folder=folder, resume=True))
    with pytest.raises(CheckpointError, match="other records"):
        rt.run(model(), (INPUTS + 1, TARGETS), **options(folder=folder, resume=True))
    with pytest.raises(CheckpointError, match="other average"):
        rt.run(model(), (INPUTS, TARGETS), **options(folder=folder, resume=True, average=0.9))
    changed, other, paid = rt.Budget(4, 1e-3), nn.MultiMarginLoss(), rt.Ledger(BUDGET)
    with pytest.raises(CheckpointError, match="other budget"):
        rt.run(model(), (INPUTS, TARGETS), **options(folder=folder, resume=True, budget=changed))
    with pytest.raises(CheckpointError, match="other loss"):
        rt.run(model(), (INPUTS, TARGETS), **options(folder=folder, resume=True, loss_fn=other))
    with pytest.raises(CheckpointError, match="other microbatch"):
        rt.run(model(), (INPUTS, TARGETS), **options(folder=folder, resume=True, microbatch=7))
    relu = nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 2))
    with pytest.raises(CheckpointError, match="other model"):
        rt.run(relu, (INPUTS, TARGETS), **options(folder=folder, resume=True))
    paid.charge(SampledGaussian(rate=1, multiplier=100), "something else")
    with pytest.raises(CheckpointError, match=r"ledger has 1 of 'something else'.* has not"):
        rt.run(model(), (INPUTS, TARGETS), **options(folder=folder, resume=True, ledger=paid))
    whole = (folder / CHECKPOINT).read_bytes()
    (folder / CHECKPOINT).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CheckpointError, match="truncated"):
        rt.run(model(), (INPUTS, TARGETS), **options(folder=folder, resume=True))
    with pytest.raises(CheckpointError, match="no checkpoint"):
        rt.run(model(), (INPUTS, TARGETS), **options(folder=tmp_path / "none", resume=True))


def test_a_checkpoint_that_lacks_something_is_refused(tmp_path):
    write_checkpoint(tmp_path, {"state": 3})
    with pytest.raises(CheckpointError, match="lacks what a run needs"):
        rt.run(model(), (INPUTS, TARGETS), **options(folder=tmp_path, resume=True))


def test_the_key_goes_when_an_own_loop_is_finished(tmp_path):
    training = rt.run(model(), (INPUTS, TARGETS), **options(folder=tmp_path))
    for _ in training:
        assert (tmp_path / CHECKPOINT).exists()
    result = training.result()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model.safetensors", "run.json"]
    assert training.result() is result


def test_stopping_leaves_a_checkpoint_to_go_on_from(tmp_path):
    whole = rt.train(model(), (INPUTS, TARGETS), **options())
    training = rt.run(model(), (INPUTS, TARGETS), **options(folder=tmp_path))
    with pytest.raises(KeyboardInterrupt):
        training.finish(lambda release: training.stop() if release.step == 5 else None)
    assert training.stopped
    resumed = rt.run(model(), (INPUTS, TARGETS), **options(folder=tmp_path, resume=True))
    assert resumed.run.state.step == 5
    assert torch.equal(weights(resumed.finish()), weights(whole))


def test_files_appear_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "report"
    write_atomically(path, b"old")

    def torn(*_):
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", torn)
    with pytest.raises(OptionError, match="disk full"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_folders_that_cannot_be_written_are_refused_before_training(tmp_path):
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "sub"):
        with pytest.raises(OptionError, match="is not a folder"):
            rt.run(model(), (INPUTS, TARGETS), **options(folder=folder))


def test_another_data_set_of_the_same_length_is_noticed(tmp_path):
    class Pairs(Dataset):
        def __init__(self, shift):
            self.shift = shift

        def __len__(self):
            return len(INPUTS)

        def __getitem__(self, index):
            return INPUTS[index] + self.shift, int(TARGETS[index])

    plain = options(folder=tmp_path, checkpoint_every=0)
    next(iter(rt.run(model(), Pairs(0.0), **plain)))
    with pytest.raises(CheckpointError, match="other records"):
        rt.run(model(), Pairs(1.0), **{**plain, "resume": True})
    rt.run(model(), Pairs(0.0), **{**plain, "resume": True}).finish()
