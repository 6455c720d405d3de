"""The records of a run: tensors resident on the training device, or any map-style data set."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten
from torch.utils.data import Dataset, IterableDataset, TensorDataset, default_collate

from reticent.errors import DataError

# inputs and targets may be a tensor, or a tuple or dict of tensors; examples along dimension 0
Batch = tuple[Any, Any]


class Records(ABC):
    """A fixed collection of (input, target) pairs, fetched by index."""

    def __init__(self, n: int) -> None:
        if n < 1:
            raise DataError("the data set has 0 records; training needs at least one")
        self.n = n

    @abstractmethod
    def fetch(self, indices: torch.Tensor) -> Batch:
        """The inputs and targets of these records, stacked, on the training device."""

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
            if isinstance(value, np.ndarray):
                value = torch.from_numpy(value)
            if not isinstance(value, torch.Tensor):
                raise DataError(f"a {type(value).__name__} among the records: must be a tensor")
            return value.to(device)

        self.inputs, self.targets = tree_map(place, inputs), tree_map(place, targets)
        columns = [*tree_flatten(self.inputs)[0], *tree_flatten(self.targets)[0]]
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

    def fingerprint(self) -> str:
        """A hash of every value."""
        if self._fingerprint is None:
            columns = [*tree_flatten(self.inputs)[0], *tree_flatten(self.targets)[0]]
            self._fingerprint = fingerprint(columns)
        return self._fingerprint

    def fetch(self, indices: torch.Tensor) -> Batch:
        """As the base class says."""

        def take(column: torch.Tensor) -> torch.Tensor:
            return column.index_select(0, indices.to(column.device))

        return tree_map(take, self.inputs), tree_map(take, self.targets)


class DatasetRecords(Records):
    """Records of a map-style data set, collated as a data loader would.

    The data set must give the same item for the same index whenever it is asked: a resumed run
    repeats the releases since its last checkpoint.
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        device: torch.device | str = "cpu",
        collate: Callable[[list[Any]], Any] = default_collate,
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

    def fingerprint(self) -> str:
        """A hash of the length and of up to 64 records spread over the data set."""
        picked = torch.linspace(0, self.n - 1, min(self.n, 64)).long()
        leaves = tree_flatten(self.fetch(picked))[0]
        plain = repr([leaf for leaf in leaves if not isinstance(leaf, torch.Tensor)])
        return f"{self.n} {plain} {fingerprint(x for x in leaves if isinstance(x, torch.Tensor))}"

    def fetch(self, indices: torch.Tensor) -> Batch:
        """As the base class says."""
        positions: Sequence[int] = indices.tolist()
        if hasattr(self.dataset, "__getitems__"):
            samples = self.dataset.__getitems__(positions)
        else:
            samples = [self.dataset[position] for position in positions]
        if self.collate is default_collate:
            batch = self.collate(samples)
        else:
            batch = self._collate_apart(samples)
        if not isinstance(batch, (tuple, list)) or len(batch) != 2:
            raise DataError(
                f"{type(self.dataset).__name__} gives {type(batch).__name__} batches: each item "
                "must be a pair (input, target)"
            )
        inputs, targets = tree_map(self._place, tuple(batch))
        return inputs, targets

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

    def _place(self, value: Any) -> Any:
        return value.to(self.device) if isinstance(value, torch.Tensor) else value


def fingerprint(tensors: Iterable[torch.Tensor]) -> str:
    """A hash of shapes, types and every value."""
    digest = hashlib.blake2b(digest_size=16)
    for tensor in tensors:
        digest.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()


def refuse_non_finite(column: torch.Tensor) -> None:
    """Name the first record with a NaN or an infinity."""
    if not column.is_floating_point():
        return
    bad = ~torch.isfinite(column).flatten(1).all(1) if column.dim() > 1 else ~column.isfinite()
    if bool(bad.any()):
        first = int(bad.nonzero()[0])
        raise DataError(
            f"{int(bad.sum())} record(s) hold NaN or infinite values, the first at position "
            f"{first}: remove or repair them"
        )


def as_records(data: Any, device: torch.device | str = "cpu") -> Records:
    """Take records in any of the usual forms.

    Args:
        data: `Records`; a pair (inputs, targets) of tensors or arrays (or tuples and dicts of
            them); a `TensorDataset`; any map-style `Dataset` of (input, target) pairs.
        device: Where batches are wanted.
    """
    if isinstance(data, Records):
        return data
    if isinstance(data, TensorDataset):
        *inputs, targets = data.tensors
        return TensorRecords(inputs[0] if len(inputs) == 1 else tuple(inputs), targets, device)
    if isinstance(data, Dataset):
        return DatasetRecords(data, device)
    if isinstance(data, tuple) and len(data) == 2:
        return TensorRecords(*data, device=device)
    raise DataError(
        f"{type(data).__name__} cannot be used as records: give a pair (inputs, targets) of "
        "tensors, or a map-style data set"
    )
