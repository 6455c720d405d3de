"""Every example in the documents runs, or says why it is not run and is checked instead."""

from __future__ import annotations

import re
import textwrap
import warnings
from pathlib import Path

import pytest
import typer

from reticent import PrivacyWarning
from reticent.cli import app

from .small_encoder import write_encoder, write_image_encoder
from .snippets import ROOT, SnippetError, blocks, inline, run_page

PAGES = sorted([ROOT / "README.md", *ROOT.glob("docs/**/*.md")])


@pytest.fixture(scope="session")
def _encoders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("encoders")
    write_image_encoder(folder / "efficientnet-lite0.pt2", side=8)
    return folder


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, _encoders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder for each page, no data but what comes with the package, and small encoders."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RETICENT_ENCODER", str(write_encoder(tmp_path / "encoder")))
    monkeypatch.setenv("RETICENT_IMAGE_ENCODERS", str(_encoders))
    monkeypatch.setenv("RETICENT_DATA", str(tmp_path / "data"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_examples_run(page: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyWarning)
        run_page(page.read_text(encoding="utf-8"), page.name)


def test_most_blocks_are_run() -> None:
    found = [block for page in PAGES for block in blocks(page.read_text(encoding="utf-8"))]
    shown = [block for block in found if block.language not in ("setup", "check", "text")]
    idle = [block for block in shown if "not run" in block.said]
    assert len(shown) > 60
    assert len(idle) < len(shown) / 2


def options(command: object, path: str = "") -> dict[str, set[str]]:
    """The flags of every command by its name."""
    flags = {word for option in command.params for word in (*option.opts, *option.secondary_opts)}
    found = {path: {flag for flag in flags if flag.startswith("--")} | {"--help"}}
    for name, part in getattr(command, "commands", {}).items():
        found |= options(part, f"{path} {name}".strip())
    return found


OPTIONS = options(typer.main.get_command(app))
ALL_OPTIONS = set().union(*OPTIONS.values())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_flags_in_sentences_exist(page: Path) -> None:
    for code in inline(page.read_text(encoding="utf-8")):
        if not re.match(r"reticent [a-z]|--[a-z]", code):
            continue
        words = code.split()
        flags = {word.partition("=")[0] for word in words if word.startswith("--")}
        path = ""
        for word in words[1:] if words[0] == "reticent" else ():
            if f"{path} {word}".strip() not in OPTIONS:
                break
            path = f"{path} {word}".strip()
        assert path or words[0] != "reticent", f"{page.name}: no such command: {code}"
        known = OPTIONS[path] if words[0] == "reticent" else ALL_OPTIONS
        assert flags <= known, f"{page.name}: {code}: no such option: {flags - known}"


def fenced(text: str, language: str = "") -> str:
    return f"```{language}\n{text}\n```\n"


@pytest.mark.parametrize(
    ("page", "message"),
    [
        (fenced("epsilon = 1 / 0", "python"), "ZeroDivisionError"),
        (fenced("delta = 1", "python") + "<!-- check: delta == 2 -->", "does not hold"),
        (fenced("reticent methods show nothing"), "nothing"),
        (fenced("reticent methods list --loud"), "--loud"),
        (fenced("reticent reproduce dpsur/table2 --data mnist --epsilon 3"), "status 1"),
        (fenced("make demo"), "not run: why"),
        (fenced("pip install reticent"), "not run: why"),
        (fenced("reticent methods list | wc"), "one plain command"),
        (fenced("reticent methods list reticent models list"), "one plain command"),
        (fenced("ε = 1"), "no command"),
        (fenced("reticent methods list", "text"), "nobody knows"),
        (fenced("fn main() {}", "rust"), "nobody knows"),
        (fenced("epsilon = 1", "toml"), "TOML needs"),
        ("<!-- file: a.toml, for train -->\n" + fenced("epsilum = 1", "toml"), "epsilum"),
        ("<!-- file: a.toml, for reproduce -->\n" + fenced("paper = 1", "toml"), "paper"),
        (fenced('{"epsilon": 1', "json"), "JSONDecodeError"),
        ("    reticent train\n", "fence it"),
        ("    from reticent import train\n", "fence it"),
        ("<!-- not run: why -->\nA sentence.\n" + fenced("reticent train"), "about no block"),
        ("<!-- not run: why -->\n", "about no block"),
        ("<!-- notrun: why -->\n" + fenced("reticent train"), "means nothing"),
        ("<!-- not run: -->\n" + fenced("reticent train"), "means nothing"),
        ("```python\n1", "does not end"),
    ],
)
def test_what_is_wrong_is_found(page: str, message: str) -> None:
    with pytest.raises(SnippetError, match=re.escape(message)):
        run_page(page, "page")


@pytest.mark.parametrize(
    ("example", "message"),
    [
        ("reticent train --epsilum 1", "epsilum"),
        ("reticent train --epsilon one", "BadParameter"),
        ("reticent train --method dpsgt", "dpsgt"),
        ("reticent train --set colour=1", "colour"),
        ("reticent train --model resnet-999", "resnet-999"),
        ("reticent train --data fashion-mnist --features scattering --feature scalez=3", "scalez"),
        ("reticent train --data mnist --features random-images --feature part=1x1", "part"),
        ("reticent train --data mnist --recipe best --set colour=1", "colour"),
        ("reticent train --data nowhere.csv --target x", "nowhere.csv"),
        ("reticent train --epsilon 1 --non-private", "means nothing"),
        ("reticent account dpsgd --n 60000 --batsh 1", "--batsh"),
        ("reticent account dpsgt --n 60000", "dpsgt"),
        ("reticent calibrate dpsur --n many", "BadParameter"),
        ("reticent data get mnisst", "mnisst"),
        ("reticent features compute cifar10 random-images --option part=1", "part"),
        ("reticent features compute cifar11", "cifar11"),
        ("reticent audit runs/mine --attacks rmio", "rmio"),
        ("reticent reproduce dpsur/table2 --epsilon 3.5", "3.5"),
        ("reticent reproduce dpsur/table99", "table99"),
        ("make dema", "dema"),
        ("pip install 'reticent[plotz]'", "plotz"),
        ("python benchmarks/stepz.py", "stepz"),
    ],
)
def test_a_command_that_is_not_run_is_checked(example: str, message: str) -> None:
    page = f"<!-- not run: takes an hour -->\n{fenced(example)}"
    with pytest.raises(SnippetError) as caught:
        run_page(page, "page")
    assert message in str(caught.value).partition("\n" + example)[0]


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("import reticents", "reticents"),
        ("from reticent import DPSGT", "DPSGT"),
        ("rt.DPSGT(batch=1)", "DPSGT"),
        ("rt.DPSGD(batsch=1)", "batsch"),
        ("rt.Budget(1, 1e-5, 'add-remove', 4, 5)", "too many"),
        ("f(", "SyntaxError"),
    ],
)
def test_code_that_is_not_run_is_checked(code: str, message: str) -> None:
    page = fenced("import reticent as rt", "python")
    page += "<!-- not run: takes an hour -->\n" + fenced(code, "python")
    with pytest.raises(SnippetError) as caught:
        run_page(page, "page")
    assert message in str(caught.value).partition("\n" + code)[0]


def test_pages_share_names_and_files_in_order() -> None:
    page = """
    <!-- setup:
    from pathlib import Path
    count = 1 -->
    ```python
    count += 1
    Path("note.txt").write_text("here")
    ```
    <!-- check: count == 2 and Path("note.txt").exists() -->
    <!-- file: mine.toml, for train -->
    ```toml
    epsilon = 2.0
    ```
    <!-- not run: takes an hour -->
    ```console
    $ reticent train --config mine.toml \\
        --steps 3
    training
    ```
    """
    assert run_page(textwrap.dedent(page), "page")["count"] == 2
    assert Path("mine.toml").read_text().startswith("epsilon")
