"""From records to features of records, computed once and kept beside the data."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from reticent.data.datasets import Splits
from reticent.data.records import fingerprint
from reticent.data.store import data_home
from reticent.errors import CheckpointError, DataError
from reticent.features import cache
from reticent.features.catalog import WORDS, build, describe

Progress = Callable[[int, int], None]

FEATURES, FINGERPRINT = "inputs are {name} features", "files of fingerprint"
"""How the note on features begins, and how it speaks of files."""

FOLDER = "features"
_PIECE = 1024  # records on the device at a time; no influence on the result


@runtime_checkable
class Finished(Protocol):
    """A map whose last part is quick, and can be done to what its slow part has given."""

    def finish(self, vectors: Tensor) -> Tensor:
        """That last part."""


def apply(
    splits: Splits,
    name: str,
    options: Mapping[str, Any] | None = None,
    *,
    root: str | Path | None = None,
    device: torch.device | str = "cpu",
    keep: bool = True,
    progress: Progress | None = None,
) -> Splits:
    """Replace the inputs of both splits by features of a fixed kind.

    What was computed before is found again; features of other inputs are noticed, and a damaged
    file is computed anew.

    Args:
        splits: what `reticent.data.load` gives.
        name: one of `reticent.features.names()`.
        options: what `describe(name).options` lists.
        root: the data folder, as for `load`; files are in its `features` folder.
        device: where to compute; the result is on the CPU.
        keep: use and write files; without, everything stays in memory.
        progress: called with the records done and the records of the split, if it is computed.

    Example:
        >>> from reticent import data, features
        >>> splits = features.apply(data.load("digits"), "scattering", keep=False)
        >>> tuple(splits.train[0].shape)
        (1437, 81, 2, 2)
    """
    card = describe(name)
    chosen = card.complete(options or {})
    notes = [feature_note(name, options)]
    made_with = card.made_with(chosen)
    paths = locate(splits, name, options, root=root) if keep else None
    features: list[Tensor] = []
    extras = extras_of(splits)
    built: dict[tuple[int, ...], nn.Module] = {}  # one for both splits: some take minutes to learn

    raw = {**chosen, **card.raw}
    slow: list[Splits] = []  # what the slow part alone gives, once it was needed

    def computed(split: str, transform: nn.Module, inputs: Tensor) -> Iterator[NDArray[np.float32]]:
        if raw == chosen or not keep:
            return _parts(transform, inputs, device, progress)
        assert isinstance(transform, Finished)
        if not slow:
            slow.append(apply(splits, name, raw, root=root, device=device, progress=progress))
        vectors, _ = slow[0].train if split == "train" else slow[0].test
        return _parts(transform.finish, vectors, device, None)

    for split, (inputs, _) in (("train", splits.train), ("test", splits.test)):
        one = tuple(inputs.shape[1:])
        if one not in built:
            built[one] = build(name, one, chosen, extras).to(device)
        transform = built[one]
        if getattr(transform, "made_with", made_with) != made_with:
            raise DataError(f"the file that {name} features are made with changed meanwhile")
        shape = (len(inputs), *transform(inputs[:0].to(device)).shape[1:])
        found = None
        if paths is not None:
            used = (extras[extra] for extra in card.extras if extra in extras)
            made_of = fingerprint((inputs, *(_as_tensor(extra) for extra in used)))
            try:
                found = cache.read(paths[split], shape, made_of)
                if found is None:
                    parts = computed(split, transform, inputs)
                    cache.write(paths[split], shape, parts, made_of)
                    found = cache.read(paths[split], shape, made_of)
            except OSError as error:  # a full or read-only folder is no reason not to train
                notes.append(f"the {split} features could not be kept ({error.strerror})")
        if found is None:
            found = _in_memory(shape, computed(split, transform, inputs))
        features.append(found)
    return replace(
        splits,
        train=(features[0], splits.train[1]),
        test=(features[1], splits.test[1]),
        notes=(*splits.notes, *notes),
    )


def locate(
    splits: Splits,
    name: str,
    options: Mapping[str, Any] | None = None,
    *,
    root: str | Path | None = None,
) -> dict[str, Path]:
    """Where the features of each split are kept, whether they are there or not.

    The names tell the kind of features and nothing of the records.
    """
    card = describe(name)
    chosen = card.complete(options or {})
    made_with = card.made_with(chosen)
    # files count by what they hold, wherever they are
    where = {option: value for option, value in chosen.items() if option not in card.files}
    stated = [cache.FORMAT, name, card.version, where if made_with else chosen, made_with]
    text = json.dumps(stated, sort_keys=True, default=repr)
    key = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
    folder = data_home(root) / FOLDER
    return {
        split: folder / f"{splits.info.stem}_{split}_{name}_{key}.npy"
        for split in ("train", "test")
    }


def extras_of(splits: Splits) -> dict[str, Any]:
    """What features may need besides records."""
    return {**splits.extras, **({WORDS: splits.words} if splits.words else {})}


def _as_tensor(extra: Tensor | tuple[str, ...]) -> Tensor:
    if isinstance(extra, Tensor):
        return extra
    return torch.frombuffer(bytearray("\n".join(extra).encode()), dtype=torch.uint8)


def _parts(
    transform: Callable[[Tensor], Tensor],
    inputs: Tensor,
    device: torch.device | str,
    progress: Progress | None,
) -> Iterator[NDArray[np.float32]]:
    for start in range(0, len(inputs), _PIECE):
        piece = inputs[start : start + _PIECE]
        yield transform(piece.to(device)).cpu().numpy()
        if progress is not None:
            progress(start + len(piece), len(inputs))


def _in_memory(shape: tuple[int, ...], parts: Iterable[NDArray[np.float32]]) -> Tensor:
    whole, start = torch.empty(shape), 0
    for part in parts:
        whole[start : start + len(part)] = torch.from_numpy(part)
        start += len(part)
    return whole


def feature_note(name: str, options: Mapping[str, Any] | None = None) -> str:
    """What a ledger says of features; of files, what they hold and not where they are."""
    card = describe(name)
    chosen = card.complete(options or {})
    made_with = card.made_with(chosen)
    stated = {o: value for o, value in chosen.items() if value not in ("", None)}
    given = [f"{o} {value}" for o, value in stated.items() if o not in card.files]
    given += [f"{FINGERPRINT} {made_with}"] if made_with else []
    return f"{FEATURES.format(name=name)} ({', '.join(given)}), {card.privacy}"


def check_note(name: str, options: Mapping[str, Any] | None, notes: Iterable[str]) -> None:
    """Refuse files that a run's features were not made with, where its notes say which."""
    if name == "none":
        return
    card = describe(name)
    chosen = card.complete(options or {})
    reason = card.absent(chosen)
    if reason is not None:
        raise CheckpointError(f"the file that its {name} features were made with: {reason}")
    then = [note for note in notes if note.startswith(FEATURES.format(name=name))]
    stated = [note for note in then if FINGERPRINT in note]
    now = f"{FINGERPRINT} {card.made_with(chosen)}"
    if stated and not any(now in note for note in stated):
        raise CheckpointError(
            f"its {name} features were made with other files than are named now; {now!r} is not "
            "in its notes"
        )
