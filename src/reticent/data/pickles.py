"""Reading the CIFAR pickles without running anything they say.

A pickle is a program. This reader lets it name exactly the four things those files need to rebuild
a byte array, and answers each with an inert stand-in that records its arguments; NumPy itself is
never handed to the pickle. Any other name is refused before it is looked up.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reticent.data.archives import Blob
from reticent.errors import DataError

_BYTE_TYPES = ("u1", b"u1", "|u1", b"|u1")


class _Array:
    """Stands in for numpy.ndarray: remembers the state a real one would be given."""

    state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _DType:
    """Stands in for numpy.dtype: remembers the type's code."""

    def __init__(self, code: Any = None, *_: Any) -> None:
        self.code = code

    def __setstate__(self, state: Any) -> None:
        """Byte order and alignment say nothing about single bytes."""


def _reconstruct(*_: Any) -> _Array:
    return _Array()


def _encode(text: Any, encoding: Any = "latin1") -> bytes:
    # Python 3 writes bytes at protocol 2 as a call of _codecs.encode(text, "latin1")
    if not isinstance(text, str) or encoding not in ("latin1", b"latin1"):
        raise pickle.UnpicklingError(f"cannot encode with {encoding!r}")
    return text.encode("latin1")


_ALLOWED: dict[tuple[str, str], Callable[..., Any]] = {
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _DType,
    ("_codecs", "encode"): _encode,
}


class _Reader(pickle.Unpickler):
    def __init__(self, blob: Blob) -> None:
        super().__init__(io.BytesIO(blob.data), encoding="bytes")
        self._name = blob.name

    def find_class(self, module: str, name: str) -> Any:
        try:
            return _ALLOWED[module, name]
        except KeyError:
            raise DataError(
                f"{self._name}: the pickle asks for {module}.{name}; expected nothing but NumPy "
                "byte arrays, so it was refused and nothing in it was run"
            ) from None


def read_pickle(blob: Blob) -> dict[str, Any]:
    """The dictionary in a CIFAR pickle, its keys as text."""
    try:
        found = _Reader(blob).load()
    except DataError:
        raise
    except Exception as error:  # a malformed pickle can raise nearly anything
        raise DataError(
            f"{blob.name}: expected a complete pickle, found {type(error).__name__}: {error}"
        ) from error
    if not isinstance(found, dict):
        raise DataError(f"{blob.name}: expected a dictionary, found {type(found).__name__}")
    return {
        key.decode("latin1") if isinstance(key, bytes) else str(key): value
        for key, value in found.items()
    }


def byte_array(blob: Blob, found: Any, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """The array of unsigned bytes that a stand-in remembers."""
    state = found.state if isinstance(found, _Array) else None
    if not isinstance(state, tuple) or len(state) != 5:
        raise DataError(f"{blob.name}: expected a NumPy array, found {type(found).__name__}")
    _, dims, dtype, fortran, data = state
    code = getattr(dtype, "code", None)
    if dims != shape or code not in _BYTE_TYPES or fortran or not isinstance(data, bytes):
        raise DataError(
            f"{blob.name}: expected unsigned bytes of shape {shape} in C order, "
            f"found type {code!r} of shape {dims!r}"
        )
    if len(data) != int(np.prod(shape)):
        raise DataError(
            f"{blob.name}: expected {int(np.prod(shape))} bytes of pixels, found {len(data)}"
        )
    return np.frombuffer(data, np.uint8).reshape(shape)


def label_list(blob: Blob, found: Any, count: int) -> NDArray[np.uint8]:
    """A list of `count` whole numbers from 0 to 255."""
    if not isinstance(found, list) or len(found) != count:
        size = len(found) if isinstance(found, list) else type(found).__name__
        raise DataError(f"{blob.name}: expected a list of {count} labels, found {size}")
    for value in found:
        if type(value) is not int or not 0 <= value <= 255:
            raise DataError(f"{blob.name}: expected labels from 0 to 255, found {value!r}")
    return np.array(found, np.uint8)
