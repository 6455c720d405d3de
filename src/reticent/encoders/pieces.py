"""Words cut into the pieces of BERT's vocabulary (Devlin et al. 2019; Wu et al. 2016).

For encoders without case: accents are dropped, punctuation stands alone, and each run of other
characters is cut from the left into the longest pieces that the vocabulary has.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

from reticent.errors import DataError

UNKNOWN, FIRST, LAST = "[UNK]", "[CLS]", "[SEP]"
UNKNOWN_WORD = "<unk>"
_LONGEST = 100  # characters; a longer run is unknown
_REPLACEMENT = "\ufffd"  # of what could not be decoded: no character
_IDEOGRAPHS = (
    *((0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F)),
    *((0x2B740, 0x2B81F), (0x2B820, 0x2CEAF), (0xF900, 0xFAFF), (0x2F800, 0x2FA1F)),
)


class WordPieces:
    """The pieces of words, as numbers of lines of a `vocab.txt`.

    Example:
        >>> pieces = WordPieces(["[UNK]", "[CLS]", "[SEP]", "un", "##plug", "##ged", "'"])
        >>> pieces.of("Unplugged'"), pieces.of("plug"), pieces.of_token("<start>")
        ([3, 4, 5, 6], [0], [])
    """

    def __init__(self, vocabulary: Sequence[str]) -> None:
        self._number = {piece: k for k, piece in enumerate(vocabulary)}
        missing = [mark for mark in (UNKNOWN, FIRST, LAST) if mark not in self._number]
        if missing:
            raise DataError(f"the encoder's vocabulary has no {missing[0]}: it is not BERT's kind")
        self.first, self.last = self._number[FIRST], self._number[LAST]

    def of_token(self, word: str) -> list[int]:
        """Of a word of the data's vocabulary, whose marks in angle brackets are no words."""
        if word == UNKNOWN_WORD:
            return [self._number[UNKNOWN]]
        return [] if word.startswith("<") and word.endswith(">") else self.of(word)

    def of(self, word: str) -> list[int]:
        """Of any text."""
        return [piece for run in _runs(word) for piece in self._cut(run)]

    def _cut(self, run: str) -> list[int]:
        found: list[int] = []
        start = 0
        while start < len(run) <= _LONGEST:
            for end in range(len(run), start, -1):
                number = self._number.get(("##" if start else "") + run[start:end])
                if number is not None:
                    break
            else:
                return [self._number[UNKNOWN]]
            found.append(number)
            start = end
        return found if len(run) <= _LONGEST else [self._number[UNKNOWN]]


def _runs(text: str) -> list[str]:
    """Split at spaces, and at punctuation and ideographs, which stand alone."""
    plain = unicodedata.normalize("NFD", text.lower())
    spaced = []
    for character in plain:
        kind = unicodedata.category(character)
        if kind == "Mn" or character == _REPLACEMENT:
            continue
        if kind.startswith("C") and character not in "\t\n\r":
            continue
        alone = _is_punctuation(character, kind) or _is_ideograph(character)
        spaced.append(f" {character} " if alone else character)
    return "".join(spaced).split()


def _is_punctuation(character: str, kind: str) -> bool:
    # all of ASCII that is neither letter, digit nor space counts: BERT's own rule
    code = ord(character)
    ascii_mark = 33 <= code <= 47 or 58 <= code <= 64 or 91 <= code <= 96 or 123 <= code <= 126
    return ascii_mark or kind.startswith("P")


def _is_ideograph(character: str) -> bool:
    return any(low <= ord(character) <= high for low, high in _IDEOGRAPHS)
