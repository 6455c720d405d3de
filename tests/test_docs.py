"""What the documents say is what the code does."""

import doctest
import importlib
import importlib.util
import math
import pkgutil
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
import typer
from scipy.stats import norm

import reticent
from reticent import data, models
from reticent.cli import app
from reticent.cli.building import build_method
from reticent.cli.settings import assignments, resolve

ROOT = Path(__file__).parent.parent
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
COMMANDS = sorted(typer.main.get_command(app).commands)
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


def headings(page):
    """The anchors of a page, as GitHub makes them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    found = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in found}


def links(page):
    return re.findall(r"\]\(([^)\s]+)\)", page.read_text())


def test_links_between_documents_lead_somewhere():
    for page in PAGES:
        for link in links(page):
            target, _, anchor = link.partition("#")
            if target.startswith("http"):
                continue
            path = page.parent / target if target else page
            assert path.exists(), f"{page.name}: {link}"
            assert not anchor or anchor in headings(path), f"{page.name}: {link}"


def test_the_index_leads_to_every_page():
    index = ROOT / "docs" / "README.md"
    reached = {(index.parent / link.partition("#")[0]).resolve() for link in links(index)}
    for page in ROOT.glob("docs/**/*.md"):
        assert page == index or page.resolve() in reached, f"docs/README.md leaves out {page.name}"


def test_files_that_pages_name_are_there():
    named = re.compile(r"`((?:benchmarks|examples|docs|tests|src)/[\w/.-]+\w)`")
    for page in PAGES:
        if page.name != "CHANGELOG.md":  # it tells of what was
            for path in named.findall(page.read_text()):
                assert (ROOT / path).exists(), f"{page.name}: {path}"


def test_pictures_have_a_text_and_are_on_a_page():
    shown = set()
    for page in PAGES:
        for text, link in re.findall(r"!\[(.*?)\]\(([^)]+)\)", page.read_text(), re.DOTALL):
            assert len(text) > 10, f"{page.name}: {link} has no text for who cannot see it"
            shown.add((page.parent / link).resolve())
    assert {path.resolve() for path in (ROOT / "docs" / "figures").iterdir()} <= shown


def script(name, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module(name)


def test_pictures_are_drawn_from_the_numbers_of_today(monkeypatch):
    pictures = script("pictures", monkeypatch)
    assert pictures.stale() == [], "run python benchmarks/pictures.py"


def test_figures_are_drawn_from_the_results_of_today(monkeypatch):
    figures = script("figures", monkeypatch)
    assert figures.stale() == [], "run python benchmarks/figures.py"
    drawn = {one.name for one in figures.drawings()} | {"threshold"}
    pictures = set(script("pictures", monkeypatch).PICTURES)
    kept = {path.stem for path in (ROOT / "docs" / "figures").glob("*.svg")}
    assert kept == drawn | pictures


def test_a_figure_of_other_results_is_noticed(tmp_path, monkeypatch):
    figures = script("figures", monkeypatch)
    before = {one.name: one for one in figures.drawings()}
    for one in before.values():
        one.save(tmp_path)
    frontier, records = figures.frontier, figures.results()
    (record,) = (one for one in records if one.get("what") == "importance")
    record["budgets"][0]["dpis"][0]["noise"][-1] *= 1 + 1e-6
    ours = frontier.ours

    def fewer(records, data):
        return ours(records, data)[:-1] if data == "mnist" else ours(records, data)

    monkeypatch.setattr(figures, "results", lambda: records)
    monkeypatch.setattr(frontier, "ours", fewer)
    stale = {one.name for one in figures.drawings() if one.stale(tmp_path)}
    assert stale == {"importance", "frontier-mnist"}


def test_numbers_of_the_pictures_are_the_accountants(monkeypatch):
    pictures = script("pictures", monkeypatch)
    kept = pictures.load("concepts")
    delta, rate = kept["delta"], kept["batch"] / kept["n"]
    for point in (kept["growth"][2], kept["growth"][-3]):
        ledger = reticent.Ledger()
        charge = reticent.privacy.SampledGaussian(rate, point["noise"])
        ledger.charge(charge, "training", count=point["steps"])
        assert ledger.epsilon(delta) == pytest.approx(point["epsilon"], rel=1e-3)
    for epsilon, noise in kept["one_release"].items():
        # Balle and Wang 2018, Theorem 8: δ of one Gaussian release, to the four digits of noise
        e, low, high = float(epsilon), 0.5 / noise, float(epsilon) * noise
        shown = norm.cdf(low - high) - math.exp(e) * norm.cdf(-low - high)
        assert shown == pytest.approx(delta, rel=0.03)
        assert shown <= delta
        share = np.linspace(0, 1, 101)  # no test of such a release gets where ε rules it out
        best = norm.cdf(norm.isf(share) - 1 / noise)
        assert (best >= pictures.allowed(share, e) - 1e-12).all()
    assert kept["too_quiet"]["lower"] > kept["too_quiet"]["upper"]


def test_a_picture_is_drawn_for_light_and_dark(monkeypatch):
    pictures = script("pictures", monkeypatch)
    drawn = pictures.draw("concepts-step").decode()
    assert "prefers-color-scheme: dark" in drawn
    colours = set(re.findall(r"(?:fill|stroke): (#\w{6})", drawn.partition("<defs>")[2]))
    assert colours <= set(pictures.DARK), "a colour without its counterpart"


@pytest.mark.parametrize("name", COMMANDS)
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
        option = flags.pop("feature", None)
        given = {"feature_options": assignments("feature", [option])} if option else {}
        settings = resolve(None, {**flags, **given, "epsilon": float(flags["epsilon"])})
        assert build_method(settings).name == "dpsgd"
        assert settings.batch == data.lookup(settings.data).n_train
        assert models.describe(settings.model)
