"""Small files of each kind."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

PEOPLE = ("age", "income", "city", "note", "ill")


def people_rows(count: int = 300, seed: int = 0) -> list[list[str]]:
    """A mixed table: two numbers, a category, a text, and a label that depends on them."""
    chance = random.Random(seed)
    rows = []
    for _ in range(count):
        ill = chance.random() < 0.5
        age = f"{chance.gauss(65 if ill else 35, 8):.1f}" if chance.random() > 0.1 else ""
        income = f"{10 ** chance.gauss(4 if ill else 5, 0.2):.0f}"
        city = chance.choice(["Rome", "Oslo", ""] if ill else ["Bonn", "Oslo"])
        note = chance.choice(["coughs a lot at night", "is cold and feels tired"])
        if not ill:
            note = chance.choice(["all is well with him", "feels fine and slept well"])
        rows.append([age, income, city, note, "yes" if ill else "no"])
    return rows


@pytest.fixture
def people(tmp_path: Path) -> Path:
    return write_csv(tmp_path / "people.csv", people_rows())


@pytest.fixture
def csv_file(tmp_path: Path) -> Callable[..., Path]:
    """Write a text as a CSV file."""

    def write(text: str | bytes, name: str = "table.csv") -> Path:
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


def write_csv(path: Path, rows: list[list[str]]) -> Path:
    lines = [",".join(PEOPLE), *(",".join(row) for row in rows)]
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def reviews(tmp_path: Path) -> Path:
    chance = random.Random(1)
    good, bad = ["great", "lovely", "superb", "moving"], ["dull", "awful", "boring", "weak"]
    lines = []
    for _ in range(200):
        happy = chance.random() < 0.5
        words = ["the", "film", "was", *chance.choices(good if happy else bad, k=4)]
        lines.append(json.dumps({"text": " ".join(words), "label": "pos" if happy else "neg"}))
    path = tmp_path / "reviews.jsonl"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def pictures(tmp_path: Path) -> Callable[..., Path]:
    """Folders of small pictures, with stripes across or down."""

    def make(
        *parts: str, count: int = 30, size: tuple[int, int] = (12, 10), suffix: str = "png"
    ) -> Path:
        image = pytest.importorskip("PIL.Image")
        chance = np.random.RandomState(2)
        root = tmp_path / "pictures"
        for part in parts or ("",):
            for label in ("across", "down"):
                folder = root / part / label
                folder.mkdir(parents=True, exist_ok=True)
                for number in range(count):
                    pixels = chance.randint(0, 60, (size[1], size[0], 3))
                    if label == "across":
                        pixels[::2] += 180
                    else:
                        pixels[:, ::2] += 180
                    image.fromarray(pixels.astype(np.uint8)).save(folder / f"{number}.{suffix}")
        return root

    return make
