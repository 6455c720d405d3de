"""A private classifier's folder: weights, what it cost, and code that rebuilds it without us."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import nn

from reticent.classifier import PrivateClassifier
from reticent.classifier_options import bounds_for
from reticent.errors import CheckpointError, OptionError, ReticentError
from reticent.files import check_folder, read_json, to_json, write_atomically
from reticent.privacy import Budget, Ledger
from reticent.row_scaling import scale_rows
from reticent.training.result import (
    RUN_FILE,
    Result,
    check_model,
    load_weights,
    read_run,
    refuse_taken,
)

FORMAT = "reticent-classifier/1"
CLASSIFIER_FILE, REBUILD_FILE = "classifier.json", "rebuild.py"
SomeClassifier = TypeVar("SomeClassifier", bound=PrivateClassifier)

_REBUILD = '''"""Rebuild this classifier with PyTorch and safetensors alone.

    import rebuild
    labels = rebuild.predict(rows)              # [n, {features}] numbers, as they were for `fit`
"""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import nn

CLASSES = {classes}
LOW = {low}
HIGH = {high}
LENGTH = {length!r}

network = nn.Sequential(
{layers}
)
network.load_state_dict(load_file(Path(__file__).with_name("model.safetensors")))
network.double().eval()


{scale_rows}

def logits(rows):
    """The scores [n, classes] of rows [n, features]."""
    rows = torch.as_tensor(rows, dtype=torch.float64)
    sides = [None if s is None else torch.tensor(s, dtype=torch.float64) for s in (LOW, HIGH)]
    with torch.no_grad():
        return network(scale_rows(rows, *sides, LENGTH))


def predict(rows):
    """The label of each row."""
    return [CLASSES[place] for place in logits(rows).argmax(1).tolist()]
'''


def rebuilding(classifier: PrivateClassifier) -> str | None:
    """Code that makes this classifier; None where its network is not all PyTorch's own layers."""
    layers = sequence_code(classifier.network_)
    if layers is None:
        return None
    low, high = bounds_for(classifier.bounds, None)
    return _REBUILD.format(
        classes=classifier.classes_.tolist(),
        low=None if low is None else low.tolist(),
        high=None if high is None else high.tolist(),
        length=classifier.row_norm,
        features=classifier.n_features_in_,
        layers="\n".join(f"    {line}," for line in layers),
        scale_rows=inspect.getsource(scale_rows),
    )


def sequence_code(network: nn.Module) -> list[str] | None:
    """A constructor call for each layer of a plain `Sequential`, or None.

    PyTorch prints its own layers as calls that make them; that these make the same state dict is
    tried, and that they print the same.
    """
    if type(network) is not nn.Sequential:
        return None
    lines = []
    for layer in network:
        if not type(layer).__module__.startswith("torch.nn.modules."):
            return None
        line = f"nn.{layer!r}"
        try:
            made = eval(line, {"nn": nn, "torch": torch})
            made.load_state_dict(layer.state_dict())
        except Exception:
            return None
        if repr(made) != repr(layer):
            return None
        lines.append(line)
    return lines


def save(classifier: PrivateClassifier, folder: Path, *, overwrite: bool) -> Path:
    """Write the folder; `run.json` last, as for every run."""
    check_folder("folder", folder)
    if not overwrite:
        refuse_taken(folder)
    options, given = {}, []
    for name, value in classifier.get_params(deep=False).items():
        plain = _plain(value)
        if plain is _NOT_PLAIN:
            given.append(name)
        else:
            options[name] = plain
    labels = classifier.classes_
    about = {
        "format": FORMAT,
        "options": options,
        "given": given,
        "classes": {"dtype": labels.dtype.str, "values": labels.tolist()},
        "features": classifier.n_features_in_,
        "feature_names": list(getattr(classifier, "feature_names_in_", [])) or None,
    }
    code, told = rebuilding(classifier), to_json(about)
    (folder / RUN_FILE).unlink(missing_ok=True)  # else it would stand over another's files
    write_atomically(folder / CLASSIFIER_FILE, told)
    if code is None:
        (folder / REBUILD_FILE).unlink(missing_ok=True)
    else:
        write_atomically(folder / REBUILD_FILE, code.encode())
    return classifier.result_.save(folder, overwrite=overwrite)


def load(kind: type[SomeClassifier], folder: Path, given: dict[str, Any]) -> SomeClassifier:
    """Read the folder back; what is no plain data comes from `given`."""
    report = read_run(folder)
    check_model(folder, report)
    about = _read(folder / CLASSIFIER_FILE)
    for name in about["given"]:
        if name not in given:
            raise OptionError(name, None, f"was no plain data when {str(folder)!r} was saved; give")
    for name in given:
        if name not in about["given"]:
            raise OptionError(name, given[name], f"is stored in {str(folder)!r}; leave it out")
    try:
        classifier = kind(**{**about["options"], **given})
        labels = about["classes"]
        classifier.classes_ = np.asarray(labels["values"], dtype=np.dtype(labels["dtype"]))
        classifier.n_features_in_ = int(about["features"])
        if about["feature_names"]:
            classifier.feature_names_in_ = np.asarray(about["feature_names"], dtype=object)
        network = classifier._build(classifier.n_features_in_, len(classifier.classes_))
        budget = report["budget"]
        result = Result(
            model=load_weights(network, folder),
            ledger=Ledger.from_json(report["ledger"]),
            budget=None if budget is None else Budget(**budget),
            held_out=report.get("held_out"),
            diverged=report.get("diverged"),
            **{name: report[name] for name in _KEPT},
        )
    except ReticentError:
        raise
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{str(folder)!r} holds no whole classifier: {error!r}") from error
    classifier.network_ = network.eval()
    classifier.result_ = result
    classifier._fits().add(result)
    return classifier


_KEPT = (
    *("method", "guarantee", "steps", "metrics", "seconds", "config", "microbatch"),
    *("piece_memory_bytes", "released", "conduct", "versions"),
)
_NOT_PLAIN = object()


def _read(path: Path) -> dict[str, Any]:
    try:
        about = read_json(path)
    except OSError as error:
        raise CheckpointError(f"classifier {str(path)!r}: {error.strerror}") from None
    except ValueError as error:
        raise CheckpointError(f"classifier {str(path)!r} is not JSON: {error}") from None
    if not isinstance(about, dict) or about.get("format") != FORMAT:
        raise CheckpointError(f"classifier {str(path)!r}: not in format {FORMAT!r}")
    return about


def _plain(value: Any) -> Any:
    """The value as JSON has it, or `_NOT_PLAIN`."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, range | tuple | list):
        parts = [_plain(part) for part in value]
        return _NOT_PLAIN if any(part is _NOT_PLAIN for part in parts) else parts
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        held = {key: _plain(part) for key, part in value.items()}
        return _NOT_PLAIN if any(part is _NOT_PLAIN for part in held.values()) else held
    return _NOT_PLAIN
