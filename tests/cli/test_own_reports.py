"""From a file to a page that people read: one command, then a real browser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from reticent.data.own import starting

from .browsers import BROWSER, DARK, looked_at, opened
from .calling import call
from .own_files import write_people, write_pictures, write_reviews

pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")

PHONE, DESK = 360, 1280
COMMANDS = {
    "people": ("--data", "people.csv", "--target", "ill"),
    "reviews": ("--data", "reviews.jsonl", "--target", "label"),
    "pictures": ("--data", "pictures"),
}
SMALL = {"parts": "1x1", "mirror": False, "images": 80}  # seconds, not a minute


Seen = dict[tuple[str, int], dict[str, Any]]  # by page and width


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    here = tmp_path_factory.mktemp("own")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(here)
        patch.setenv("RETICENT_DATA", str(here / "home"))
        patch.setitem(starting._FEATURES, "feature_options", SMALL)
        write_people(here / "people.csv")
        write_reviews(here / "reviews.jsonl")
        write_pictures(here / "pictures")
        for name, words in COMMANDS.items():
            call("train", *words, "--out", name, "--device", "cpu", "--quiet")
    return {name: here / name / "report.html" for name in COMMANDS}


@pytest.fixture(scope="module")
def seen(pages: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Seen:
    folder = tmp_path_factory.mktemp("copies")
    spoilt = folder / "spoilt.html"  # to see that what is looked for would be found
    text = pages["people"].read_text()
    bad = '<img src="none.png"><div style="width:2000px">wide</div><p style="font-size:5px">x</p>'
    cut = text.index("<path", text.index('<svg class="chart"'))
    spoilt.write_text(
        text[:cut]
        + text[text.index("</svg>") :]
        .replace("<tbody>", "<tbody hidden>", 1)
        .replace("</main>", bad + "</main>")
    )
    return looked_at({**pages, "spoilt": spoilt}, (PHONE, DESK), folder)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_console_stays_silent(pages: dict[str, Path], name: str, tmp_path: Path) -> None:
    dom, told = opened(pages[name], tmp_path / "profile")
    assert told == []
    assert dom.count("<section id=") == 7
    assert dom.count('<svg class="chart"') == 3


def test_the_console_tells_what_a_page_would_load(pages: dict[str, Path], tmp_path: Path) -> None:
    page = tmp_path / "page.html"  # its policy as it was: what is loaded is told before it fails
    page.write_text(pages["reviews"].read_text().replace("<main>", '<main><img src="none.png">'))
    _, told = opened(page, tmp_path / "profile")
    assert len(told) == 1
    assert "none.png" in told[0]


@pytest.mark.parametrize("width", [PHONE, DESK])
@pytest.mark.parametrize("name", COMMANDS)
def test_charts_and_their_numbers_can_be_read(seen: Seen, name: str, width: int) -> None:
    found = seen[name, width]
    assert len(found["charts"]) == len(found["tables"]) == 3
    for chart in found["charts"]:
        assert 200 < chart["width"] <= width
        assert chart["height"] > 80
        assert chart["drawn"] >= 3
        assert chart["letters"] > 7
    assert min(found["tables"]) >= 2
    assert found["smallest"] >= 14
    assert found["scroll"] <= width
    assert found["out"] == 0
    assert 0 not in found["images"]


def test_what_is_wrong_would_be_seen(seen: Seen) -> None:
    found = seen["spoilt", PHONE]
    assert found["scroll"] > 1500
    assert found["out"] >= 1
    assert found["images"] == [0]
    assert found["smallest"] == 5
    assert found["charts"][0]["drawn"] == 0
    assert found["tables"][0] == 0


def test_the_dark_is_dark(seen: Seen, pages: dict[str, Path], tmp_path: Path) -> None:
    dark = looked_at(pages, (DESK,), tmp_path, DARK)
    for name in COMMANDS:
        light, other = seen[name, DESK], dark[name, DESK]
        assert [_bright(light[key]) for key in ("page", "ink")] == [True, False]
        assert [_bright(other[key]) for key in ("page", "ink")] == [False, True]


def _bright(colour: str) -> bool:
    return sum(map(int, colour.strip("rgb()").split(","))) > 3 * 128
