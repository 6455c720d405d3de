"""The network behind `random-images`: its shape, how it is trained, and files of its weights."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from reticent.errors import OptionError
from reticent.files import write_atomically
from reticent.models.wideresnet import WideResNet
from reticent.pretraining.contrastive import Drawing, Pretraining, Progress, pretrain

SIDE = 32  # of the images that the network learned from
WEIGHTS = "random-images.safetensors"
_NOTE = "pretraining"  # in a file's metadata: the plan, the last loss and this library's version


def network() -> WideResNet:
    """The network's architecture, its classifier left out."""
    net = WideResNet(16, 4, channels=3, classes=1, activation=nn.ReLU)
    net.classifier = nn.Identity()  # type: ignore[assignment]
    return net


def learn_network(
    plan: Pretraining,
    *,
    device: torch.device | str = "cpu",
    compiled: bool = False,
    drawing: Drawing | None = None,
    progress: Progress | None = None,
) -> tuple[WideResNet, float]:
    """A network trained on random images from a seeded beginning, and its last loss.

    See `reticent.pretraining.contrastive.pretrain` for the arguments.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(plan.seed)
        net = network()
    losses = pretrain(
        net,
        net.norm.num_channels,
        plan,
        device=device,
        compiled=compiled,
        drawing=drawing,
        progress=progress,
    )
    return net, losses[-1]


def save_network(path: str | Path, net: nn.Module, plan: Pretraining, loss: float) -> None:
    """Write weights in half precision, with how they were learned; all or nothing."""
    tensors = {
        name: value.detach().to("cpu", torch.float16).contiguous()
        for name, value in net.state_dict().items()
    }
    from reticent import __version__  # which is not there yet while the library is imported

    note = {**plan.to_json(), "loss": loss, "version": __version__}
    content = save(tensors, metadata={_NOTE: json.dumps(note, allow_nan=False)})
    write_atomically(Path(path), content)


def load_network(path: str = "") -> WideResNet:
    """The trained network, frozen; the one that comes with the library for ''."""
    try:
        state = load(weights_bytes(path))
    except SafetensorError as error:
        raise OptionError("weights", path, f"is no whole safetensors file: {error}") from None
    net = network()
    _check(path, net.state_dict(), state)
    net.load_state_dict({name: value.float() for name, value in state.items()})
    return net.eval().requires_grad_(False)


def weights_digest(path: str) -> str:
    """A fingerprint of these weights."""
    return hashlib.blake2b(weights_bytes(path), digest_size=8).hexdigest()


def weights_origin(path: str = "") -> dict[str, Any]:
    """How these weights were learned, as their file tells: plan, last loss, version.

    >>> weights_origin()["steps"]
    10400
    """
    content = weights_bytes(path)
    try:
        length = int.from_bytes(content[:8], "little")
        note = json.loads(content[8 : 8 + length])["__metadata__"][_NOTE]
        told = json.loads(note)
    except (ValueError, KeyError, TypeError):
        return {}
    return told if isinstance(told, dict) else {}


def weights_bytes(path: str) -> bytes:
    """The file with the network's weights; the one that comes with the library for ''."""
    if not isinstance(path, str):
        raise OptionError("weights", path, "must be the name of a file")
    try:
        if path:
            return Path(path).read_bytes()
        return (files("reticent.features") / "weights" / WEIGHTS).read_bytes()
    except (OSError, ValueError) as error:  # ValueError: a name that no file can have
        reason = getattr(error, "strerror", None) or error
        raise OptionError("weights", path, f"cannot be read: {reason}") from None


def _check(path: str, expected: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> None:
    """Refuse what is not, name by name and shape by shape, a set of this network's weights."""
    kept = f"does not hold this network's {len(expected)} tensors"
    for name in sorted({*expected, *state}):
        if name not in state:
            raise OptionError("weights", path, f"{kept}: {name} is missing")
        if name not in expected:
            raise OptionError("weights", path, f"{kept}: it has {name}")
        found, wanted = tuple(state[name].shape), tuple(expected[name].shape)
        if found != wanted:
            raise OptionError("weights", path, f"{kept}: {name} has shape {found}, not {wanted}")
        if not math.isfinite(float(state[name].float().abs().sum())):
            raise OptionError("weights", path, f"{name} holds numbers that are not finite")
