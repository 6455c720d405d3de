"""A frozen image encoder that users bring, as a program that `torch.export` wrote.

Such a file holds the computation and its weights, whatever library the network came from, so that
none is needed to use it. Reading one trusts whoever made it, as running their code would.
"""

from __future__ import annotations

import hashlib
import io
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

from reticent.encoders.separate import near, refuse_memory, refuse_mixing
from reticent.errors import DataError, ModelError, OptionError, ReticentError, whole
from reticent.files import replacing

IMAGE_ENVIRONMENT = "RETICENT_IMAGE_ENCODERS"
SUFFIX = ".pt2"
ROWS = 64  # images at a time, where the program leaves it open
_EXPORT = "`reticent.features.export_encoder(network, 'NAME.pt2', side=224)` writes one"


class ImageProgram:
    """An encoder from a file: images [rows, C, H, W] to one row of numbers for each.

    The file is read once: what is computed is what `made_with` is the fingerprint of.

    Attributes:
        shape: C, H and W of the images that it takes.
        rows: How many at a time, always.
        width: How many numbers each becomes.
        made_with: A fingerprint of the file.
    """

    def __init__(self, encoder: str | Path, content: bytes | None = None) -> None:
        self.path = _found(encoder) if content is None else Path(encoder)
        self._content = _content(self.path) if content is None else content
        self.made_with = _digest(self._content)
        program = _read(self.path, self._content)
        taken = _taken(self.path, program)
        given = _only(self.path, program, "gives", _outputs(program))
        if len(given) not in (2, 4) or not all(isinstance(size, int) for size in given[1:]):
            raise DataError(
                f"{self.path}: gives {_shown(given)}; it must give [n, d], or maps [n, d, H, W]"
            )
        if 0 in (*taken, *given):
            raise DataError(f"{self.path}: takes {_shown(taken)} and gives {_shown(given)}")
        if str(given[0]) != str(taken[0]):  # a number, or the name of what is left open
            raise ModelError(
                f"{self.path}: gives {given[0]} rows for {taken[0]} images; it must give one each"
            )
        refuse_memory(program, str(self.path))
        self.shape = (int(taken[1]), int(taken[2]), int(taken[3]))
        self.rows = taken[0] if isinstance(taken[0], int) else ROWS
        self.width = int(given[1])
        self._modules: dict[torch.device, nn.Module] = {}
        self._layout: torch.memory_format | None = None  # found when something is first computed

    def __call__(self, images: Tensor) -> Tensor:
        """Encode exactly `rows` images."""
        if self._layout is None:
            self._layout = self._checked()
        return self._computed(images, self._layout)

    def _computed(self, images: Tensor, layout: torch.memory_format) -> Tensor:
        module = self._on(images.device)
        with torch.no_grad():
            found = module(images.contiguous(memory_format=layout))
        if len(found) != len(images):
            raise ModelError(f"{self.path}: gives {len(found)} rows for {len(images)} images")
        return found.float().mean((2, 3)) if found.dim() == 4 else found.float()

    def _on(self, device: torch.device) -> nn.Module:
        if device not in self._modules:
            program = _read(self.path, self._content)
            if device.type != "cpu":  # with weights, what the program makes itself
                program = move_to_device_pass(program, device)
            module = program.module()
            for weight in module.parameters():
                weight.requires_grad_(False)
                if weight.dim() == 4:  # about twice as fast on a CPU
                    weight.data = weight.data.contiguous(memory_format=torch.channels_last)
            self._modules[device] = module
        return self._modules[device]

    def _checked(self) -> torch.memory_format:
        """Refuse what does not map each image on its own; how images are best laid out."""
        coins = torch.Generator().manual_seed(0)
        images = torch.rand((self.rows, *self.shape), generator=coins)
        try:
            plain = self._computed(images, torch.contiguous_format)
        except ReticentError:
            raise
        except Exception as error:  # whatever a program may do
            raise DataError(
                f"{self.path}: the encoder cannot be run on {self.rows} images ({_brief(error)}); "
                "it must take float32, export network.float()"
            ) from error
        if not bool(plain.isfinite().all()):
            raise DataError(f"{self.path}: the encoder gives numbers that are not finite")
        layout = torch.contiguous_format
        try:  # faster by far for most, wrong for what reads memory in its own order
            if near(self._computed(images, torch.channels_last), plain):
                layout = torch.channels_last
        except Exception:
            layout = torch.contiguous_format
        refuse_mixing(lambda some: self._computed(some, layout), images, str(self.path), coins)
        return layout


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
    path = Path(path).expanduser()
    if path.suffix != SUFFIX:
        raise OptionError("path", str(path), f"must end with {SUFFIX}")
    if not isinstance(network, nn.Module):
        raise OptionError("network", type(network).__name__, "must be a torch.nn.Module")
    size = (whole("rows", rows), whole("channels", channels), *(2 * (whole("side", side),)))
    was = {module: module.training for module in network.modules()}
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
        for module, training in was.items():
            module.training = training
    content = io.BytesIO()
    with _quiet():
        torch.export.save(program, content)
    ImageProgram(path, content.getvalue())  # refused here, where it can be mended
    with replacing(path) as file:
        file.write(content.getvalue())
    return path


def image_encoder_side(encoder: str | Path) -> int:
    """The side of the images that an encoder takes, the longer one; nothing is computed."""
    path = _found(encoder)
    return max(int(side) for side in _taken(path, _read(path, _content(path)))[2:])


def image_encoder_digest(encoder: str | Path = "") -> str:
    """A fingerprint of an encoder's file; empty where it is not there."""
    path = _where(encoder)
    return "" if path is None else _digest(_content(path))


def image_encoder_missing(encoder: str | Path) -> str | None:
    """Why there is no such encoder; None where there is one."""
    if not str(encoder):
        return f"name a file with an image encoder; {_EXPORT}"
    if _where(encoder) is not None:
        return None
    if Path(encoder).expanduser().is_dir():
        return f"is a folder; name the file in it, NAME{SUFFIX}"
    folder = os.environ.get(IMAGE_ENVIRONMENT)
    place = f"nor in {folder}" if folder else f"and ${IMAGE_ENVIRONMENT} names no folder of them"
    return f"there is no such file here, {place}; {_EXPORT}"


def _where(encoder: str | Path) -> Path | None:
    """The file as named, or of that name in the folder of encoders."""
    if not isinstance(encoder, (str, Path)):
        raise OptionError("encoder", encoder, f"must name a file, NAME{SUFFIX}")
    if not str(encoder):
        return None
    folder = os.environ.get(IMAGE_ENVIRONMENT)
    try:
        named = Path(encoder).expanduser()
        kept = [Path(folder).expanduser() / part for part in (named, named.name)] if folder else []
        return next((place for place in (named, *kept) if place.is_file()), None)
    except (OSError, RuntimeError, ValueError) as error:  # no name of a file at all
        raise OptionError("encoder", str(encoder), f"cannot be a file: {error}") from None


def _found(encoder: str | Path) -> Path:
    reason = image_encoder_missing(encoder)
    if reason is not None:
        raise OptionError("encoder", str(encoder), reason)
    path = _where(encoder)
    assert path is not None
    return path


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from None


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def _read(path: Path, content: bytes) -> ExportedProgram:
    try:
        with _quiet():
            return torch.export.load(io.BytesIO(content))
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
    if verb == "gives" and not program.call_spec.out_spec.is_leaf():
        raise DataError(f"{path}: gives a tuple, a list or a dict; it must be one tensor")
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
