"""Shadow models on the disk: one file for each, named by what it was made of.

A file takes its name only once it is whole, so a killed process loses the models under way and no
others. Files are for their owner alone: a model knows its records, and so does the hash of these
that is kept inside. No name comes from the records.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from reticent.data.records import fingerprint
from reticent.errors import OptionError
from reticent.files import check_folder, write_atomically

FORMAT = "reticent-shadow/1"
OWNER_ONLY = 0o600


def content_key(facts: Mapping[str, Any], model: nn.Module) -> str:
    """A hash of these facts, of the architecture and of the initial weights."""
    state = model.state_dict()
    everything = {
        **facts,
        "format": FORMAT,
        "architecture": repr(model),
        "names": sorted(state),
        "weights": fingerprint(state[name] for name in sorted(state)),
    }
    text = json.dumps(everything, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def open_folder(folder: str | Path) -> Path:
    """The folder, made for its owner alone where it is not there yet."""
    path = Path(folder)
    check_folder("folder", path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise OptionError("folder", str(path), f"cannot be made: {error}") from error
    return path


def path_of(folder: Path, name: str) -> Path:
    """Where the model of this name lies, or would."""
    return folder / f"shadow-{name}.safetensors"


def write(folder: Path, name: str, key: str, model: nn.Module) -> None:
    """Keep a trained model."""
    tensors = {
        name: value.detach().cpu().clone().contiguous()
        for name, value in model.state_dict().items()
    }
    facts = {"format": FORMAT, "key": key, "values": _checksum(tensors)}
    write_atomically(path_of(folder, name), save(tensors, facts), mode=OWNER_ONLY)


def read(folder: Path, name: str, key: str, model: nn.Module) -> str | None:
    """Load a kept model into `model`; else why not, or "" where there is none."""
    path = path_of(folder, name)
    if not os.path.lexists(path):
        return ""
    try:
        with safe_open(path, framework="pt") as file:
            facts = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError, ValueError, RuntimeError) as error:
        return f"{path.name} cannot be read ({type(error).__name__})"
    if facts.get("format") != FORMAT or facts.get("key") != key:
        return f"{path.name} holds something else, or is of other records"
    if facts.get("values") != _checksum(tensors):
        return f"{path.name} is damaged"
    own = model.state_dict()
    if {n: (t.shape, t.dtype) for n, t in tensors.items()} != {
        n: (t.shape, t.dtype) for n, t in own.items()
    }:
        return f"{path.name} holds another architecture"
    model.load_state_dict(tensors)
    return None


def _checksum(tensors: Mapping[str, Tensor]) -> str:
    names = sorted(tensors)
    values = fingerprint(torch.atleast_1d(tensors[name]) for name in names)
    return hashlib.blake2b("\0".join([*names, values]).encode(), digest_size=16).hexdigest()
