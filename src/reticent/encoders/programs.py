"""A frozen image encoder that users bring, as a program that `torch.export` wrote.

Such a file holds the computation and its weights, whatever library the network came from, so that
none is needed to use it. Reading one trusts whoever made it, as running their code would.
"""

from __future__ import annotations

import hashlib
import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.export.passes import move_to_device_pass

from reticent.errors import DataError, ModelError, OptionError, whole
from reticent.files import replacing

IMAGE_ENVIRONMENT = "RETICENT_IMAGE_ENCODERS"
SUFFIX = ".pt2"
ROWS = 64  # images at a time, where the program leaves it open
_EXPORT = "`reticent.features.export_encoder(network, 'NAME.pt2', side=224)` writes one"
_MIXED = 1e-3  # of the largest number: by more than this, no rounding moves another image's


class ImageProgram:
    """An encoder from a file: images [rows, C, H, W] to one row of numbers for each.

    Attributes:
        shape: C, H and W of the images that it takes.
        rows: How many at a time, always.
        width: How many numbers each becomes.
    """

    def __init__(self, encoder: str | Path) -> None:
        self.path = _found(encoder)
        self._program = _read(self.path)
        taken = _taken(self.path, self._program)
        given = _only(self.path, self._program, "gives", _outputs(self._program))
        if len(given) not in (2, 4) or not all(isinstance(size, int) for size in given[1:]):
            raise DataError(
                f"{self.path}: gives {_shown(given)}; it must give [n, d], or maps [n, d, H, W]"
            )
        self.shape = (int(taken[1]), int(taken[2]), int(taken[3]))
        self.rows = taken[0] if isinstance(taken[0], int) else ROWS
        self.width = int(given[1])
        self._modules: dict[torch.device, nn.Module] = {}
        self._check()

    def __call__(self, images: Tensor) -> Tensor:
        """Encode exactly `rows` images."""
        module = self._on(images.device)
        with torch.no_grad():
            found = module(images.contiguous(memory_format=torch.channels_last))
        return found.float().mean((2, 3)) if found.dim() == 4 else found.float()

    def _on(self, device: torch.device) -> nn.Module:
        if device not in self._modules:
            program = self._program
            if device.type != "cpu":  # with weights, what the program makes itself
                program = move_to_device_pass(_read(self.path), device)
            module = program.module()
            for weight in module.parameters():
                weight.requires_grad_(False)
                if weight.dim() == 4:  # about twice as fast on a CPU
                    weight.data = weight.data.contiguous(memory_format=torch.channels_last)
            self._modules[device] = module
        return self._modules[device]

    def _check(self) -> None:
        """Refuse what does not map each image on its own, always in the same way."""
        coins = torch.Generator().manual_seed(0)
        images = torch.rand((self.rows, *self.shape), generator=coins)
        others = torch.rand((self.rows, *self.shape), generator=coins)
        others[0] = images[0]
        try:
            first, second = self(images), self(images)
            beside = self(others)
        except Exception as error:  # whatever a program may do
            raise DataError(f"{self.path}: the encoder cannot be run ({_brief(error)})") from error
        if not bool(first.isfinite().all()):
            raise DataError(f"{self.path}: the encoder gives numbers that are not finite")
        for again, whole_of in ((second, slice(None)), (beside, slice(0, 1))):
            off = float((again[whole_of] - first[whole_of]).abs().max())
            if off > _MIXED * float(first.abs().max()):
                how = "another image's" if again is beside else "the same images, a second time,"
                raise ModelError(
                    f"{self.path}: {how} numbers come out otherwise: it was exported while "
                    "training, or mixes the images of a batch; export network.eval()"
                )


def export_encoder(
    network: nn.Module,
    path: str | Path,
    *,
    side: int = 224,
    channels: int = 3,
    rows: int = ROWS,
) -> Path:
    """Write a frozen encoder of images for `--features image-encoder`; the file's path.

    What the network was trained on must not include the records.

    Args:
        network: From images [rows, channels, side, side] to [rows, d], or to maps.
        path: Where to; the name ends with .pt2.
        side: Height and width that it takes; images are resized to that.
        channels: 3, or 1 for grey.
        rows: How many images it is computed for at a time.

    Example:
        >>> from torch import nn
        >>> import tempfile
        >>> tiny = nn.Sequential(nn.Conv2d(3, 5, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     ImageProgram(export_encoder(tiny, folder + "/tiny.pt2", side=8, rows=2)).width
        5
    """
    path = Path(path)
    if path.suffix != SUFFIX:
        raise OptionError("path", str(path), f"must end with {SUFFIX}")
    size = (whole("rows", rows), whole("channels", channels), *(2 * (whole("side", side),)))
    was = network.training
    network.eval()
    try:
        weight = next(network.parameters(), torch.zeros(0))
        images = torch.zeros(size, device=weight.device)
        with torch.no_grad(), _quiet():
            program = torch.export.export(network, (images,))
        program.example_inputs = None  # a file of zeros several times as large as the weights
        if weight.device.type != "cpu":
            program = move_to_device_pass(program, "cpu")
    except Exception as error:  # of the network's own making
        raise ModelError(
            f"the network cannot be exported for images {_shown(size)}: {_brief(error)}"
        ) from error
    finally:
        network.train(was)
    with replacing(path) as file, _quiet():
        torch.export.save(program, file)
    return path


def image_encoder_side(encoder: str | Path) -> int:
    """The side of the images that an encoder takes, the longer one; nothing is computed."""
    path = _found(encoder)
    return max(int(side) for side in _taken(path, _read(path))[2:])


def image_encoder_digest(encoder: str | Path = "") -> str:
    """A fingerprint of an encoder's file; empty where it is not there."""
    path = _where(encoder)
    if path is None:
        return ""
    return hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()


def image_encoder_missing(encoder: str | Path) -> str | None:
    """Why there is no such encoder; None where there is one."""
    if not str(encoder):
        return f"name a file with an image encoder; {_EXPORT}"
    if _where(encoder) is not None:
        return None
    folder = os.environ.get(IMAGE_ENVIRONMENT)
    place = f"nor in {folder}" if folder else f"and ${IMAGE_ENVIRONMENT} names no folder of them"
    return f"there is no such file here, {place}; {_EXPORT}"


def _where(encoder: str | Path) -> Path | None:
    """The file as named, or in the folder of encoders."""
    if not str(encoder):
        return None
    named = Path(encoder)
    folder = os.environ.get(IMAGE_ENVIRONMENT)
    places = [named, *([Path(folder) / named] if folder else [])]
    return next((place for place in places if place.is_file()), None)


def _found(encoder: str | Path) -> Path:
    reason = image_encoder_missing(encoder)
    if reason is not None:
        raise OptionError("encoder", str(encoder), reason)
    path = _where(encoder)
    assert path is not None
    return path


def _read(path: Path) -> ExportedProgram:
    try:
        with _quiet():
            return torch.export.load(path)
    except Exception as error:  # of whatever kind: the file is not what it should be
        raise DataError(
            f"{path}: is no program of torch.export that PyTorch {torch.__version__} can read "
            f"({_brief(error)}); {_EXPORT}"
        ) from error


def _taken(path: Path, program: ExportedProgram) -> tuple[Any, ...]:
    """The sizes [n, C, H, W] of what it takes; n may be open."""
    taken = _only(path, program, "takes", _inputs(program))
    if len(taken) != 4 or not all(isinstance(size, int) for size in taken[1:]):
        raise DataError(
            f"{path}: takes {_shown(taken)}; it must take images [n, C, H, W] of one size"
        )
    return taken


def _inputs(program: ExportedProgram) -> list[Any]:
    wanted = program.graph_signature.user_inputs
    return [
        node for node in program.graph.nodes if node.op == "placeholder" and node.name in wanted
    ]


def _outputs(program: ExportedProgram) -> list[Any]:
    wanted = program.graph_signature.user_outputs
    return [node for node in program.graph.nodes if node.name in wanted]


def _only(path: Path, program: ExportedProgram, verb: str, nodes: list[Any]) -> tuple[Any, ...]:
    """The sizes of the one tensor that a program takes or gives."""
    values = [node.meta.get("val") for node in nodes]
    if len(values) != 1 or not isinstance(values[0], Tensor):
        raise DataError(f"{path}: {verb} {len(values)} values; it must be one tensor")
    if not values[0].is_floating_point():
        raise DataError(f"{path}: {verb} {values[0].dtype}; it must be floating-point numbers")
    return tuple(values[0].shape)


def _shown(sizes: tuple[Any, ...]) -> str:
    return "[" + ", ".join(str(size) for size in sizes) + "]"


def _brief(error: Exception) -> str:
    first = str(error).strip().splitlines()
    return f"{type(error).__name__}: {first[0][:200]}" if first else type(error).__name__


@contextmanager
def _quiet() -> Iterator[None]:
    """Without torch.export's remarks about its own making."""
    log = logging.getLogger("torch.export")
    before = log.level
    log.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(before)
