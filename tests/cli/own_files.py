"""Files of one's own as tests train on them."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest


def write_people(path: Path, count: int = 300) -> Path:
    chance = random.Random(0)
    lines = ["age,income,city,note,ill"]
    for _ in range(count):
        ill = chance.random() < 0.5
        age = f"{chance.gauss(65 if ill else 35, 8):.1f}" if chance.random() > 0.1 else ""
        income = f"{10 ** chance.gauss(4 if ill else 5, 0.2):.0f}"
        city = chance.choice(["Rome", "Oslo", ""] if ill else ["Bonn", "Oslo"])
        note = "coughs a lot at night" if ill else "feels fine and slept well"
        lines.append(f"{age},{income},{city},{note},{'yes' if ill else 'no'}")
    path.write_text("\n".join(lines) + "\n")
    return path


def write_reviews(path: Path) -> Path:
    chance = random.Random(1)
    words = {"pos": ["great", "lovely", "superb"], "neg": ["dull", "awful", "boring"]}
    with path.open("w") as file:
        for _ in range(200):
            label = chance.choice(["pos", "neg"])
            text = " ".join(["the film was", *chance.choices(words[label], k=4)])
            file.write(json.dumps({"text": text, "label": label}) + "\n")
    return path


def write_pictures(root: Path) -> Path:
    image = pytest.importorskip("PIL.Image")
    chance = np.random.RandomState(2)
    for label in ("across", "down"):
        (root / label).mkdir(parents=True)
        for number in range(30):
            pixels = chance.randint(0, 60, (16, 16, 3))
            if label == "across":
                pixels[::4] += 180
            else:
                pixels[:, ::4] += 180
            image.fromarray(pixels.astype(np.uint8)).save(root / label / f"{number}.png")
    return root
