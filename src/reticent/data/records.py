"""The records of a run: tensors on the training device or the host, or any map-style data set."""

from __future__ import annotations

import hashlib
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten
from torch.utils.data import Dataset, IterableDataset, TensorDataset, default_collate

from reticent.data.prefetch import OneAhead
from reticent.data.transfer import Sender, free_memory, pinned
from reticent.errors import DataError, OptionError, one_of

PLACES = ("auto", "device", "host")
# Tensors that would take more of the free device memory than this stay on the host.
DEVICE_SHARE = 0.5
# What is read of a column at once, so that a memory-mapped one is never in memory as a whole.
CHUNK_BYTES = 1 << 26

# inputs and targets may be a tensor, or a tuple or dict of tensors; examples along dimension 0
Batch = tuple[Any, Any]


class Records(ABC):
    """A fixed collection of (input, target) pairs, fetched by index."""

    #: where `fetch` likes its indices; None: on the training device
    indices_on: torch.device | None = None
    #: whether `expect` does anything
    fetches_ahead: bool = False

    def __init__(self, n: int) -> None:
        if n < 1:
            raise DataError("the data set has 0 records; training needs at least one")
        self.n = n

    @abstractmethod
    def fetch(self, indices: torch.Tensor) -> Batch:
        """The inputs and targets of these records, stacked, on the training device."""

    def expect(self, indices: Callable[[], torch.Tensor | None]) -> None:  # noqa: B027
        """A hint that the next fetch is likely of these indices, for which to begin with it.

        `indices` is called in another thread, where it may wait; None is no hint.
        """

    def fingerprint(self) -> str:
        """Tells these records from others, as far as it can cheaply; as private as they are."""
        return str(self.n)

    def one(self) -> Batch:
        """A batch of the first record, to read shapes and dtypes from."""
        return self.fetch(torch.zeros(1, dtype=torch.long))


class TensorRecords(Records):
    """Records held as tensors on the training device: no host round trip per draw."""

    def __init__(self, inputs: Any, targets: Any, device: torch.device | str = "cpu") -> None:
        def place(value: Any) -> torch.Tensor:
            return as_tensor(value).to(device)

        self.inputs, self.targets = tree_map(place, inputs), tree_map(place, targets)
        columns = self.columns()
        lengths = [len(column) if column.dim() else -1 for column in columns]
        if len(set(lengths)) != 1 or -1 in lengths:
            shapes = ", ".join(str(tuple(column.shape)) for column in columns)
            raise DataError(
                f"inputs and targets have shapes {shapes}: the first dimension counts the records "
                "and must be the same everywhere"
            )
        super().__init__(lengths[0])
        self._fingerprint: str | None = None
        for column in columns:
            refuse_non_finite(column)

    def columns(self) -> list[torch.Tensor]:
        """All tensors, those of the inputs first."""
        return [*tree_flatten(self.inputs)[0], *tree_flatten(self.targets)[0]]

    def fingerprint(self) -> str:
        """A hash of every value."""
        if self._fingerprint is None:
            self._fingerprint = fingerprint(self.columns())
        return self._fingerprint

    def fetch(self, indices: torch.Tensor) -> Batch:
        """As the base class says."""

        def take(column: torch.Tensor) -> torch.Tensor:
            return column.index_select(0, indices.to(column.device))

        if isinstance(self.inputs, torch.Tensor) and isinstance(self.targets, torch.Tensor):
            return take(self.inputs), take(self.targets)  # walking a tree takes longer
        return tree_map(take, self.inputs), tree_map(take, self.targets)


class HostRecords(TensorRecords):
    """Records held as tensors on the host, for data that the training device has no room for.

    Rows are gathered into pinned memory and copied without waiting; those that `expect` names are
    on their way while the device is still at work on the batch before. Only these rows need to be
    pinned: a column may be a memory-mapped file, and is never copied as a whole.
    """

    indices_on = torch.device("cpu")
    fetches_ahead = True

    def __init__(self, inputs: Any, targets: Any, device: torch.device | str = "cpu") -> None:
        super().__init__(inputs, targets, "cpu")
        self.device = torch.device(device)
        sender = Sender(self.device)
        self._ahead = OneAhead(
            lambda indices: sender.send(self._gather(indices)),
            lambda indices: sender.send_early(self._gather(indices)),
        )

    def fetch(self, indices: torch.Tensor) -> Batch:
        """As the base class says."""
        return self._ahead.fetch(indices.cpu())

    def expect(self, indices: Callable[[], torch.Tensor | None]) -> None:
        """As the base class says."""
        self._ahead.expect(indices)

    def _gather(self, indices: torch.Tensor) -> Batch:
        def take(column: torch.Tensor) -> torch.Tensor:
            if self.device.type != "cuda":
                return column.index_select(0, indices)
            room = pinned((len(indices), *column.shape[1:]), column.dtype)
            return torch.index_select(column, 0, indices, out=room)

        return tree_map(take, self.inputs), tree_map(take, self.targets)


class DatasetRecords(Records):
    """Records of a map-style data set, collated as a data loader would.

    The data set must give the same item for the same index whenever it is asked: a resumed run
    repeats the releases since its last checkpoint.

    Args:
        dataset: Any with `__len__` and `__getitem__`.
        device: Where batches are wanted.
        collate: From a list of items to a batch, as for a data loader.
        ahead: Read the next items in another thread while the present ones are worked on. Not by
            default: only whoever wrote the data set knows whether its files and generators stand
            being read from a second thread.
    """

    indices_on = torch.device("cpu")

    def __init__(
        self,
        dataset: Dataset[Any],
        device: torch.device | str = "cpu",
        collate: Callable[[list[Any]], Any] = default_collate,
        *,
        ahead: bool = False,
    ) -> None:
        if isinstance(dataset, IterableDataset) or not (
            hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")
        ):
            raise DataError(
                f"{type(dataset).__name__}: Poisson sampling picks records by index, which needs a "
                "map-style data set with __len__ and __getitem__"
            )
        self.dataset, self.device, self.collate = dataset, torch.device(device), collate
        super().__init__(len(dataset))
        self.fetches_ahead = ahead
        sender = Sender(self.device)
        self._ahead = OneAhead(
            lambda indices: sender.send(self._read(indices)),
            lambda indices: sender.send_early(self._read(indices)),
        )

    def fingerprint(self) -> str:
        """A hash of the length and of up to 64 records spread over the data set."""
        picked = torch.linspace(0, self.n - 1, min(self.n, 64)).long()
        leaves = tree_flatten(self.fetch(picked))[0]
        plain = repr([leaf for leaf in leaves if not isinstance(leaf, torch.Tensor)])
        return f"{self.n} {plain} {fingerprint(x for x in leaves if isinstance(x, torch.Tensor))}"

    def fetch(self, indices: torch.Tensor) -> Batch:
        """As the base class says."""
        return self._ahead.fetch(indices.cpu())

    def expect(self, indices: Callable[[], torch.Tensor | None]) -> None:
        """As the base class says."""
        if self.fetches_ahead:
            self._ahead.expect(indices)

    def _read(self, indices: torch.Tensor) -> Batch:
        positions: Sequence[int] = indices.tolist()
        if hasattr(self.dataset, "__getitems__"):
            samples = self.dataset.__getitems__(positions)
        else:
            samples = [self.dataset[position] for position in positions]
        if self.collate is default_collate:
            batch = self._collate(samples)
        else:
            batch = self._collate_apart(samples)
        if not isinstance(batch, (tuple, list)) or len(batch) != 2:
            raise DataError(
                f"{type(self.dataset).__name__} gives {type(batch).__name__} batches: each item "
                "must be a pair (input, target)"
            )
        inputs, targets = batch
        return inputs, targets

    def _collate(self, samples: list[Any]) -> Any:
        try:
            return self.collate(samples)
        except TypeError as error:
            raise DataError(f"{type(self.dataset).__name__}: {error}") from error

    def _collate_apart(self, samples: list[Any]) -> Any:
        """Collate each sample alone, then stack: padding to the longest couples the records."""
        alone = [self.collate([sample]) for sample in samples]
        leaves, shape = zip(*(tree_flatten(one) for one in alone), strict=True)
        columns = []
        for column in zip(*leaves, strict=True):
            sizes = {tuple(leaf.shape[1:]) for leaf in column if isinstance(leaf, torch.Tensor)}
            if len(sizes) != 1:
                raise DataError(
                    f"records have shapes {', '.join(map(str, sorted(sizes))) or 'unknown'} after "
                    "collating: bring every record to one public shape, whatever else is drawn"
                )
            columns.append(torch.cat(column))
        return tree_unflatten(columns, shape[0])


def as_tensor(value: Any) -> torch.Tensor:
    """A tensor over the same memory; also of an array that is mapped for reading only."""
    if isinstance(value, np.ndarray):
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*not writable")  # nobody writes to records
            value = torch.from_numpy(value)
    if not isinstance(value, torch.Tensor):
        raise DataError(f"a {type(value).__name__} among the records: must be a tensor")
    if value.layout is not torch.strided:
        kind = str(value.layout).removeprefix("torch.")
        raise DataError(f"a {kind} tensor among the records: give a dense one, by .to_dense()")
    return value


def _in_chunks(column: torch.Tensor) -> Iterator[tuple[int, torch.Tensor]]:
    """Parts of a column along its first dimension, each with the position where it begins."""
    if column.dim() == 0 or column.nbytes <= CHUNK_BYTES:
        yield 0, column
        return
    rows = max(CHUNK_BYTES // (column.nbytes // len(column)), 1)
    for start in range(0, len(column), rows):
        yield start, column[start : start + rows]


def fingerprint(tensors: Iterable[torch.Tensor]) -> str:
    """A hash of shapes, types and every value."""
    digest = hashlib.blake2b(digest_size=16)
    for tensor in tensors:
        digest.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
        for _, part in _in_chunks(tensor.detach()):
            flat = part.cpu().contiguous().reshape(-1)
            digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()


def refuse_non_finite(column: torch.Tensor) -> None:
    """Name the first record with a NaN or an infinity."""
    if not column.is_floating_point():
        return
    first, count = -1, 0
    for start, part in _in_chunks(column):
        bad = ~torch.isfinite(part).flatten(1).all(1) if part.dim() > 1 else ~part.isfinite()
        found = int(bad.sum())
        if found and not count:
            first = start + int(bad.nonzero()[0])
        count += found
    if count:
        raise DataError(
            f"{count} record(s) hold NaN or infinite values, the first at position "
            f"{first}: remove or repair them"
        )


def as_records(data: Any, device: torch.device | str = "cpu", on: str = "auto") -> Records:
    """Take records in any of the usual forms.

    Args:
        data: `Records`; a pair (inputs, targets) of tensors or arrays (or tuples and dicts of
            them); a `TensorDataset`; any map-style `Dataset` of (input, target) pairs.
        device: Where batches are wanted.
        on: Where tensors are kept: `device`, `host`, or `auto`, which is the device if they take at
            most half of its free memory. A data set stays where it is.
    """
    one_of("data_on", on, PLACES)
    if isinstance(data, TensorDataset):
        *inputs, targets = data.tensors
        return _held((inputs[0] if len(inputs) == 1 else tuple(inputs), targets), device, on)
    if isinstance(data, (Records, Dataset)):
        if on == "device" or (on == "host" and isinstance(data, Records)):
            raise OptionError(
                "data_on", on, f"{type(data).__name__} says itself where records are; leave it out"
            )
        return data if isinstance(data, Records) else DatasetRecords(data, device)
    if isinstance(data, tuple) and len(data) == 2:
        return _held(data, device, on)
    raise DataError(
        f"{type(data).__name__} cannot be used as records: give a pair (inputs, targets) of "
        "tensors, or a map-style data set"
    )


def _held(data: Any, device: torch.device | str, on: str) -> TensorRecords:
    device = torch.device(device)
    inputs, targets = (tree_map(as_tensor, part) for part in data)
    if on == "auto" and device.type == "cuda":
        columns = tree_flatten((inputs, targets))[0]
        here = sum(column.nbytes for column in columns if column.device.type != "cuda")
        on = "device" if here <= DEVICE_SHARE * free_memory(device) else "host"
    # on the CPU the host is the device
    kind = HostRecords if on == "host" and device.type != "cpu" else TensorRecords
    try:
        return kind(inputs, targets, device)
    except torch.OutOfMemoryError as error:
        raise OptionError("data_on", on, f"{device} has no room for the records: {error}") from None
