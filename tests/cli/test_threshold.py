"""`reticent threshold`: table, JSON, figure and refusals."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from .calling import call, refuse

COMMAND = ("threshold", "--valid-sigma", 1.3)


def normal(x: float) -> float:
    return math.erfc(-x / math.sqrt(2)) / 2


def test_the_table_marks_the_largest_difference() -> None:
    shown = call(*COMMAND)
    rows = [line for line in shown.splitlines() if line.startswith("│")]
    assert len(rows) == 13
    (marked,) = [row for row in rows if "←" in row]
    assert marked.split("│")[1].strip() == "0"
    assert "largest at β = 0, where it is 0.2995" in shown


def test_json_of_all_thresholds() -> None:
    shown = json.loads(call(*COMMAND, "--json"))
    assert [row["beta"] for row in shown["thresholds"]] == [step / 2 for step in range(-6, 7)]
    for row in shown["thresholds"]:
        good, bad = (normal((row["beta"] + side) / 2.6) for side in (1, -1))
        assert (row["good"], row["bad"]) == pytest.approx((good, bad), rel=1e-12)
        assert row["difference"] == pytest.approx(good - bad, rel=1e-12)
        assert row["trials"] == pytest.approx(2 / (good + bad), rel=1e-12)
    best = max(shown["thresholds"], key=lambda row: row["difference"])
    assert shown["largest_difference"] == {
        "beta": best["beta"],
        "difference": pytest.approx(best["difference"]),
    }
    assert shown["plot"] is None


def test_json_of_one_threshold() -> None:
    shown = json.loads(call(*COMMAND, "--beta", -1, "--good-share", 0.25, "--json"))
    (row,) = shown["thresholds"]
    bad = normal(-2 / 2.6)
    assert (row["beta"], row["good"]) == (-1, 0.5)
    assert row["trials"] == pytest.approx(1 / (0.25 * 0.5 + 0.75 * bad))
    assert (shown["valid_noise"], shown["good_share"]) == (1.3, 0.25)
    assert len([line for line in call(*COMMAND, "--beta", -1).splitlines() if "│" in line]) == 1


def test_what_no_float_can_hold() -> None:
    words = ("threshold", "--valid-noise", 0.01, "--beta", -90)
    (row,) = json.loads(call(*words, "--json"))["thresholds"]
    assert row["trials"] is row["ratio"] is row["good_among_accepted"] is None
    assert "over 1e308" in " ".join(call(*words).split())


@pytest.mark.parametrize("suffix", ["svg", "png", "SVG"])
def test_plot(suffix: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "new" / f"figure.{suffix}"
    assert str(path) in call(*COMMAND, "--plot", path).replace("\n", "")
    content = path.read_bytes()
    if suffix == "png":
        assert content.startswith(b"\x89PNG")
    else:
        assert "good, σ_v = 1.3</text>" in content.decode()
    assert list(path.parent.iterdir()) == [path]
    shown = json.loads(call(*COMMAND, "--plot", path, "--beta", -1, "--json"))
    assert shown["plot"] == str(path)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--valid-sigma", 0), "--valid-sigma = 0"),
        (("--valid-sigma", -1), "--valid-sigma = -1"),
        (("--valid-sigma", "nan"), "--valid-sigma = nan"),
        (("--valid-sigma", 1, "--beta", "nan"), "beta = nan"),
        (("--valid-sigma", 1, "--beta", "inf"), "beta = inf"),
        (("--valid-sigma", 1, "--good-share", 1.5), "--good-share = 1.5: must lie in [0, 1]"),
        (("--valid-sigma", 1, "--good-share", -0.5), "--good-share = -0.5"),
        (("--valid-sigma", 1, "--plot", "figure.pdf"), "'figure.pdf': must end in .svg or .png"),
        (("--valid-sigma", 1, "--plot", "figure"), "must end in .svg or .png"),
        (("--valid-sigma", 1, "--plot", "file/figure.svg"), "is not a folder"),
        (("--valid-sigma", 1, "--plot", "folder.svg"), "is a folder; name a file"),
        (("--valid-sigma", 0, "--plot", "figure.svg"), "--valid-sigma = 0"),
    ],
)
def test_what_cannot_work_is_named(
    words: tuple[object, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    (tmp_path / "folder.svg").mkdir()
    assert message in refuse("threshold", *words)
    assert {path.name for path in tmp_path.iterdir()} == {"file", "folder.svg"}


def test_a_folder_that_cannot_be_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reticent.files.os.access", lambda path, mode: False)
    assert "cannot be written to" in refuse(*COMMAND, "--plot", tmp_path / "figure.svg")
    monkeypatch.undo()

    def full(*arguments: object, **options: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("reticent.files.tempfile.mkstemp", full)
    assert "cannot be written to: no space left" in refuse(
        *COMMAND, "--plot", tmp_path / "figure.svg"
    )


def test_without_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    message = refuse(*COMMAND, "--plot", tmp_path / "figure.svg")
    assert "needs matplotlib: pip install reticent[plots]" in message
    assert not list(tmp_path.iterdir())
    call(*COMMAND)  # nothing else needs it


def test_what_is_slow_to_import_is_imported_where_it_is_needed() -> None:
    code = (
        "import sys, reticent.cli as cli\n"
        "cli.app(['threshold', '--valid-sigma', '1'], standalone_mode=False)\n"
        "sys.exit(any(name in sys.modules for name in ('matplotlib', 'sklearn', 'PIL')))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0
