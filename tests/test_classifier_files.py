"""A fitted classifier on disk: read back by the library, and without it."""

import json
import subprocess
import sys

import numpy as np
import pytest
from torch import nn

import reticent as rt
from reticent import classifier_files
from reticent.classifier import PrivateClassifier
from reticent.training.checkpoint import CHECKPOINT

from .classifier_problem import problem, quick

pytestmark = pytest.mark.filterwarnings("ignore::reticent.classifier_fits.PrivacyWarning")

ALONE = """
import importlib.util, json, sys
class Block:
    def find_spec(self, name, *rest):
        if name.split(".")[0] in ("reticent", "sklearn"):
            raise ImportError(name)
sys.meta_path.insert(0, Block())
spec = importlib.util.spec_from_file_location("rebuild", sys.argv[1] + "/rebuild.py")
rebuild = importlib.util.module_from_spec(spec)
spec.loader.exec_module(rebuild)
rows = json.load(sys.stdin)
import torch
from safetensors.torch import load_file
plain = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 3)).double()
plain.load_state_dict(load_file(sys.argv[1] + "/model.safetensors"))
rows64 = torch.tensor(rows, dtype=torch.float64).clamp(-3, 3) / 3
by_hand = plain(rows64 / rows64.norm(dim=1, keepdim=True)).tolist()
print(json.dumps([rebuild.logits(rows).tolist(), rebuild.predict(rows), by_hand]))
"""


def test_a_saved_classifier_lives_without_us(tmp_path):
    X, y = problem()
    words = np.array(["ant", "bee", "cow"])[y]
    fitted = quick(classes=["ant", "bee", "cow"], bounds=(-3, 3)).fit(X, words)
    fitted.save(tmp_path / "mine")
    told = subprocess.run(
        [sys.executable, "-c", ALONE, tmp_path / "mine"],
        input=json.dumps(X.tolist()),
        capture_output=True,
        text=True,
        check=True,
        timeout=100,
    )
    logits, labels, by_hand = json.loads(told.stdout)
    assert np.asarray(logits) == pytest.approx(fitted.decision_function(X), abs=1e-12)
    assert np.asarray(by_hand) == pytest.approx(fitted.decision_function(X), abs=1e-9)
    assert labels == fitted.predict(X).tolist()


@pytest.mark.parametrize("options", [{"model": "mlp"}, {"row_norm": 4.0}, {"bounds": (-3, 3)}])
def test_saving_and_loading(tmp_path, options):
    X, y = problem()
    fitted = quick(**options).fit(X, y)
    fitted.save(tmp_path)
    again = PrivateClassifier.load(tmp_path)
    assert np.array_equal(again.decision_function(X), fitted.decision_function(X))
    assert again.predict(X).dtype == y.dtype
    assert again.epsilon_ == again.total_epsilon_ == fitted.epsilon_
    assert again.ledger_.to_json() == fitted.ledger_.to_json()
    assert again.get_params()["steps"] == 5
    with pytest.raises(rt.CheckpointError, match="finished run"):
        fitted.save(tmp_path)
    fitted.save(tmp_path, overwrite=True)
    (tmp_path / "classifier.json").write_text("{}")
    with pytest.raises(rt.CheckpointError, match="reticent-classifier"):
        PrivateClassifier.load(tmp_path)


def test_another_model_is_not_this_classifier(tmp_path):
    X, y = problem()
    quick().fit(X, y).save(tmp_path / "mine")
    quick(steps=6).fit(X, y).save(tmp_path / "other")
    (tmp_path / "other" / "model.safetensors").replace(tmp_path / "mine" / "model.safetensors")
    with pytest.raises(rt.CheckpointError, match=r"mine/model\.safetensors' is not the file that"):
        PrivateClassifier.load(tmp_path / "mine")


def test_a_kill_leaves_no_statement_over_another_classifier(tmp_path, monkeypatch):
    X, y = problem()
    quick(bounds=(-3, 3)).fit(X, y).save(tmp_path)
    other = quick(bounds=(-5, 5)).fit(X, y)
    write = classifier_files.write_atomically

    def killed(path, data):
        write(path, data)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(classifier_files, "write_atomically", killed)
        with pytest.raises(KeyboardInterrupt):
            other.save(tmp_path, overwrite=True)
    with pytest.raises(rt.CheckpointError, match=r"run\.json"):
        PrivateClassifier.load(tmp_path)
    other.save(tmp_path)
    again = PrivateClassifier.load(tmp_path)
    assert np.array_equal(again.decision_function(X), other.decision_function(X))


def test_an_unfinished_run_is_replaced_only_if_asked(tmp_path):
    X, y = problem()
    fitted = quick().fit(X, y)
    (tmp_path / CHECKPOINT).write_bytes(b"of another run")
    with pytest.raises(rt.CheckpointError, match="unfinished run"):
        fitted.save(tmp_path)
    fitted.save(tmp_path, overwrite=True)
    assert not (tmp_path / CHECKPOINT).exists()
    assert PrivateClassifier.load(tmp_path).epsilon_ == fitted.epsilon_


def test_what_is_no_plain_data_must_be_given_again(tmp_path):
    X, y = problem()

    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, rows):
            return self.layer(rows) * 2

    fitted = quick(model=Odd()).fit(X, y)
    fitted.save(tmp_path)
    assert not (tmp_path / "rebuild.py").exists()
    with pytest.raises(rt.OptionError, match="model = None"):
        PrivateClassifier.load(tmp_path)
    again = PrivateClassifier.load(tmp_path, model=Odd())
    assert np.array_equal(again.predict_proba(X), fitted.predict_proba(X))
    with pytest.raises(rt.OptionError, match="steps = 3"):
        PrivateClassifier.load(tmp_path, model=Odd(), steps=3)


def test_what_was_found_of_a_run_is_kept(tmp_path):
    X, y = problem()
    fitted = quick(classes=range(3), bounds=(-3, 3)).fit(X, y)
    fitted.result_.diverged = {"release": 3, "kind": "weights"}
    fitted.result_.held_out = {"accuracy": 0.5}
    fitted.save(tmp_path)
    again = PrivateClassifier.load(tmp_path)
    assert again.result_.to_json() == fitted.result_.to_json()
    assert again.result_.diverged == {"release": 3, "kind": "weights"}
