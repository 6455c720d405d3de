"""What the documents say is what the code does."""

import doctest
import importlib
import importlib.util
import pkgutil
import re
import shlex
from pathlib import Path

import pytest

import reticent
from reticent import data, models
from reticent.cli.building import build_method
from reticent.cli.settings import resolve

ROOT = Path(__file__).parent.parent
MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(reticent.__path__, "reticent.")
    # Triton's kernels are imported where Triton is
    if "__main__" not in module.name and ".triton_" not in module.name
)


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings(name):
    module = importlib.import_module(name)
    options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    assert doctest.testmod(module, optionflags=options).failed == 0


def test_some_docstrings_have_examples():
    found = [
        test
        for name in MODULES
        for test in doctest.DocTestFinder().find(importlib.import_module(name))
        if test.examples
    ]
    assert len(found) > 8


def test_the_first_example_of_the_readme_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)[0]
    names = {}
    exec(code, names)
    assert names["result"].epsilon <= 3
    assert names["rt"].evaluate(names["result"].model, names["data"].test)["accuracy"] > 0.8
    assert (tmp_path / "runs" / "first" / "run.json").exists()


def test_generated_pages_are_what_the_results_give(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    spec = importlib.util.spec_from_file_location("tables", ROOT / "benchmarks" / "tables.py")
    tables = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tables)
    pages = tables.pages()
    names = {path.name for path in pages}
    assert names == {"results.md", "frontier.md", "reproductions.md", "README.md"}
    for path, text in pages.items():
        assert path.read_text() == text, f"{path.name}: run python benchmarks/tables.py"


def test_links_between_documents_lead_somewhere():
    for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]:
        for target in re.findall(r"\]\(([^)#]+)", page.read_text()):
            if not target.startswith("http"):
                assert (page.parent / target).exists(), f"{page.name}: {target}"


@pytest.mark.parametrize(
    "name",
    [
        "train",
        "account",
        "calibrate",
        "data",
        "features",
        "methods",
        "models",
        "audit",
        "deniability",
        "plan",
        "report",
        "reproduce",
        "threshold",
    ],
)
def test_every_command_is_in_the_readme(name):
    assert f"reticent {name}" in (ROOT / "README.md").read_text()


def test_the_commands_of_the_frontier_can_be_run():
    # all but the training itself: settings, method, model
    page = (ROOT / "docs" / "frontier.md").read_text()
    commands = re.findall(r"`reticent train (--data [^`]*)`", page)
    assert len(commands) > 15
    for command in commands:
        words = shlex.split(command)
        flags = {
            name.removeprefix("--"): value for name, value in zip(*[iter(words)] * 2, strict=True)
        }
        settings = resolve(None, {**flags, "epsilon": float(flags["epsilon"])})
        assert build_method(settings).name == "dpsgd"
        assert settings.batch == data.lookup(settings.data).n_train
        assert models.describe(settings.model)
