"""A result's folder: it is not written over another run, and its statement is about its model."""

import hashlib
import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

import reticent as rt
from reticent.errors import CheckpointError, OptionError
from reticent.training import result as results
from reticent.training.checkpoint import CHECKPOINT
from reticent.training.result import check_model, model_trouble, read_run

from .problem import INPUTS, TARGETS, model, options


def trained(seed=5, **changes):
    coins = rt.Coins.from_seed(seed)
    return rt.train(model(), (INPUTS, TARGETS), **options(coins=coins, **changes))


def content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def hash_of(folder):
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()


def test_another_run_is_not_overwritten_unasked(tmp_path):
    ours, other = trained(folder=tmp_path), trained(6)
    before = content(tmp_path)
    with pytest.raises(CheckpointError, match=r"holds a finished run; .*overwrite=True"):
        other.save(tmp_path)
    assert content(tmp_path) == before
    assert other.save(tmp_path, overwrite=True) == tmp_path
    assert content(tmp_path) == content(other.save(tmp_path / "fresh"))
    with pytest.raises(CheckpointError, match="finished run"):
        ours.save(tmp_path)


def test_an_unfinished_run_is_not_overwritten_unasked(tmp_path):
    next(iter(rt.run(model(), (INPUTS, TARGETS), **options(folder=tmp_path, checkpoint_every=0))))
    before, other = content(tmp_path), trained(6)
    with pytest.raises(CheckpointError, match="holds an unfinished run"):
        other.save(tmp_path)
    assert content(tmp_path) == before
    other.save(tmp_path, overwrite=True)
    assert sorted(content(tmp_path)) == ["model.safetensors", "run.json"]


def test_the_same_run_can_be_saved_again(tmp_path):
    result = trained(folder=tmp_path)
    before = content(tmp_path)
    for damage in (
        lambda path: None,
        lambda path: path.unlink(),
        lambda path: path.write_bytes(path.read_bytes()[:99]),
    ):
        damage(tmp_path / "model.safetensors")
        assert result.save(str(tmp_path)) == tmp_path
        assert content(tmp_path) == before
    with torch.no_grad():  # no longer what was released
        result.model[0].weight += 1
    with pytest.raises(CheckpointError, match="finished run"):
        result.save(tmp_path)
    assert content(tmp_path) == before


def test_where_nothing_can_be_written_nothing_is_changed(tmp_path):
    result = trained(folder=tmp_path / "run")
    before = content(tmp_path / "run")
    result.config["no JSON"] = float("nan")
    with pytest.raises(ValueError, match="JSON"):
        result.save(tmp_path / "run", overwrite=True)
    assert content(tmp_path / "run") == before
    (tmp_path / "file").write_text("")
    with pytest.raises(OptionError, match="is not a folder"):
        result.save(tmp_path / "file")


@pytest.mark.parametrize("file", ["model.safetensors", "run.json"])
def test_a_kill_leaves_no_statement_over_other_weights(tmp_path, monkeypatch, file):
    """Killed before and after each write: what `run.json` says is true of the model, or gone."""
    for when in ("before", "after"):
        folder = tmp_path / when
        first, other = trained(folder=folder), trained(6)
        write = results.write_atomically

        def killed(path, data, write=write, when=when):
            if path.name == file and when == "before":
                raise KeyboardInterrupt
            write(path, data)
            if path.name == file:
                raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(results, "write_atomically", killed)
            with pytest.raises(KeyboardInterrupt):
                other.save(folder, overwrite=True)
        if (folder / "run.json").exists():
            assert (file, when) == ("run.json", "after")
            check_model(folder, read_run(folder))
        assert other.save(folder) == folder  # no run is in the way
        before = content(folder)
        with monkeypatch.context() as patch:  # the same run stays whole all the time
            patch.setattr(results, "write_atomically", killed)
            with pytest.raises(KeyboardInterrupt):
                other.save(folder, overwrite=True)
        assert content(folder) == before
        assert first.epsilon == other.epsilon


def test_a_checkpoint_goes_only_when_the_result_is_whole(tmp_path, monkeypatch):
    training = rt.run(model(), (INPUTS, TARGETS), **options(folder=tmp_path))
    whole = trained()

    def full(path, data):
        if path.name == "run.json":
            raise OptionError("folder", str(path.parent), "cannot be written to: disk full")
        path.write_bytes(data)

    with monkeypatch.context() as patch:
        patch.setattr(results, "write_atomically", full)
        with pytest.raises(OptionError, match="disk full"):
            training.finish()
    assert (tmp_path / CHECKPOINT).exists()
    again = rt.run(model(), (INPUTS, TARGETS), **options(folder=tmp_path, resume=True)).finish()
    assert sorted(content(tmp_path)) == ["model.safetensors", "run.json"]
    assert torch.equal(again.model[0].weight, whole.model[0].weight)


def test_run_json_names_its_model_by_hash(tmp_path):
    trained().save(tmp_path / "saved")
    rt.run(model(), (INPUTS, TARGETS), **options(folder=tmp_path / "run")).result()
    for folder in tmp_path.iterdir():
        run = read_run(folder)
        assert run["model_sha256"] == hash_of(folder)
        assert model_trouble(folder, run) is None


def test_a_copy_is_the_same_run(tmp_path):
    trained(folder=tmp_path / "run")
    there = shutil.copytree(tmp_path / "run", tmp_path / "elsewhere" / "run")
    check_model(there, read_run(there))


def _other(path):
    save_file({name: value + 1 for name, value in load_file(path).items()}, path)


TROUBLE = {
    "gone": (lambda path: path.unlink(), "does not exist"),
    "cut off": (lambda path: path.write_bytes(path.read_bytes()[:-1]), "is not the file that"),
    "a folder": (lambda path: (path.unlink(), path.mkdir()), "cannot be read: Is a directory"),
    "other weights": (_other, "is not the file that this run wrote: its SHA-256"),
}


@pytest.mark.parametrize("name", TROUBLE)
def test_a_model_that_is_not_the_runs_is_refused(tmp_path, name):
    change, said = TROUBLE[name]
    trained(folder=tmp_path)
    run = read_run(tmp_path)
    change(tmp_path / "model.safetensors")
    assert model_trouble(tmp_path, run).startswith(said)
    with pytest.raises(CheckpointError, match=rf"model\.safetensors' {said}.*; copy it from"):
        check_model(tmp_path, run)


@pytest.mark.parametrize("name", TROUBLE)
def test_a_run_of_an_earlier_version_has_no_hash(tmp_path, name):
    trained(folder=tmp_path)
    run = json.loads((tmp_path / "run.json").read_text())
    del run["model_sha256"]
    (tmp_path / "run.json").write_text(json.dumps(run))
    assert model_trouble(tmp_path, read_run(tmp_path)) is None
    TROUBLE[name][0](tmp_path / "model.safetensors")
    found = model_trouble(tmp_path, read_run(tmp_path))
    if name == "other weights":
        assert found is None  # nobody can tell
    else:
        assert found.startswith(("does not exist", "cannot be read: "))


def test_weights_from_elsewhere_still_load(tmp_path):
    result = trained(folder=tmp_path)
    _other(tmp_path / "model.safetensors")
    assert torch.equal(rt.load_weights(model(3), tmp_path)[0].weight, result.model[0].weight + 1)
    (tmp_path / "run.json").unlink()
    assert torch.equal(rt.load_weights(model(3), tmp_path)[0].weight, result.model[0].weight + 1)
