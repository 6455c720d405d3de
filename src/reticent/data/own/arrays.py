"""NumPy files: an .npz with inputs and labels, or two .npy files."""

from __future__ import annotations

import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from reticent.data.own.encoding import scaled
from reticent.data.own.labels import label_text
from reticent.data.own.options import listed
from reticent.errors import DataError, OptionError

_INPUTS = ("inputs", "x", "X", "images", "data", "features")
_LABELS = ("labels", "y", "Y", "targets", "target")


@dataclass(frozen=True)
class Arrays:
    """Inputs and labels as they stand in a file."""

    origin: str
    inputs: NDArray[Any]
    labels: list[str]


def read_arrays(path: Path, target: str | None) -> tuple[Arrays, Arrays | None]:
    """The records of an .npz or .npy file, and those it keeps apart for testing."""
    if path.suffix.lower() == ".npy":
        if target is None:
            raise OptionError("target", None, f"must be the .npy file of labels for {path.name}")
        # beside the inputs, wherever the command is given
        return _records(path, _loaded(path), _loaded(path.parent / target)), None
    held = _loaded(path)
    train = _pick(path, held, target, "train")
    if train is None:
        train = _pick(path, held, target, "")
        if train is None:
            raise OptionError(
                "target",
                target,
                f"must be an array of labels beside one of inputs; {path.name} holds "
                f"{listed(list(held))}",
            )
        return train, None
    return train, _pick(path, held, target, "test")


def public_bounds(
    values: NDArray[Any], stated: tuple[float, float] | None
) -> tuple[float, float] | None:
    """The bounds of inputs: as stated, or else those of their type; None where there are none."""
    if stated is None and values.dtype.kind == "b":
        return 0.0, 1.0
    if stated is None and values.dtype == np.uint8:
        return 0.0, 255.0
    return (0.0, 1.0) if stated is None and values.ndim > 2 else stated


def array_inputs(origin: str, values: NDArray[Any], bounds: tuple[float, float] | None) -> Tensor:
    """Inputs as float32, on the scale of these bounds; rows of numbers may have none.

    Images [n, H, W], [n, H, W, C] or [n, C, H, W] are put into [0, 1] as [n, C, H, W].
    """
    if values.dtype.kind not in "biuf":
        raise DataError(f"{origin}: inputs are {values.dtype}; expected numbers")
    if values.dtype.kind == "f":
        good = np.isfinite(values).reshape(len(values), -1)
        if not good.all():
            row, place = np.argwhere(~good)[0]
            raise DataError(
                f"{origin}: record {row + 1}, column {place} is NaN or infinite; mend it"
            )
    if values.ndim == 2:
        return torch.from_numpy(scaled(values.astype(np.float64), bounds).astype(np.float32))
    return _images(origin, values, bounds or (0.0, 1.0))


def _images(origin: str, values: NDArray[Any], bounds: tuple[float, float]) -> Tensor:
    if values.ndim == 3:
        values = values[:, None]
    elif values.ndim == 4 and values.shape[3] in (1, 3) and values.shape[1] not in (1, 3):
        values = values.transpose(0, 3, 1, 2)
    if values.ndim != 4 or values.shape[1] not in (1, 3):
        raise DataError(
            f"{origin}: inputs have shape {values.shape}; expected rows of numbers or images of "
            "one or three channels"
        )
    if values.min() < bounds[0] or values.max() > bounds[1]:
        raise DataError(
            f"{origin}: images go beyond {bounds[0]:g}..{bounds[1]:g}; state their range with "
            "--bounds LOW..HIGH"
        )
    floats = torch.from_numpy(np.ascontiguousarray(values).astype(np.float32))
    return floats.sub_(bounds[0]).div_(bounds[1] - bounds[0])


def new_inputs(path: Path) -> NDArray[Any]:
    """The inputs of an .npz or .npy file, which needs no labels."""
    found = _loaded(path)
    if isinstance(found, dict):
        name = next((name for name in _INPUTS if name in found), None)
        if name is None and len(found) == 1:
            name = next(iter(found))
        if name is None:
            raise DataError(
                f"{path}: expected an array called {listed(_INPUTS)}, found {listed(list(found))}"
            )
        found = found[name]
    if not found.size:
        raise DataError(f"{path}: holds no records")
    if found.ndim < 2:
        raise DataError(f"{path}: inputs have shape {found.shape}; expected one row a record")
    inputs: NDArray[Any] = found
    return inputs


def _pick(path: Path, held: dict[str, Any], target: str | None, part: str) -> Arrays | None:
    def named(stems: tuple[str, ...]) -> str | None:
        tried = [f"{stem}_{part}" if part else stem for stem in stems]
        tried += [f"{part}_{stem}" for stem in stems if part]
        return next((name for name in tried if name in held), None)

    inputs = named(_INPUTS)
    labels = named((target,) if target is not None else _LABELS)
    if inputs is None or labels is None:
        return None
    return _records(path, held[inputs], held[labels])


def _records(path: Path, inputs: Any, labels: Any) -> Arrays:
    if not inputs.size and not labels.size:
        raise DataError(f"{path}: holds no records")
    if labels.ndim != 1 or inputs.ndim < 2 or len(labels) != len(inputs) or not len(labels):
        raise DataError(
            f"{path}: inputs of shape {inputs.shape} and labels of shape {labels.shape}: expected "
            "one label for each input"
        )
    if labels.dtype.kind == "f" and not np.isfinite(labels).all():
        row = int(np.argmin(np.isfinite(labels)))
        raise DataError(f"{path}: record {row + 1}: the label is NaN or infinite")
    if labels.dtype.kind not in "biufUS":
        raise DataError(f"{path}: labels are {labels.dtype}; expected numbers or text")
    texts = [label_text(x.decode() if isinstance(x, bytes) else x) for x in labels.tolist()]
    return Arrays(str(path), inputs, texts)


def _loaded(path: Path) -> Any:
    try:
        found = np.load(path, allow_pickle=False)
        if isinstance(found, np.ndarray):
            return found
        with found:
            return {name: found[name] for name in found.files}
    except FileNotFoundError:
        raise DataError(f"{path}: there is no such file") from None
    except (OSError, EOFError, ValueError, zlib.error, zipfile.BadZipFile) as error:
        raise DataError(f"{path}: expected a NumPy file without pickles, found {error}") from None
