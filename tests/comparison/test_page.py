"""The page: whole, true, and the same for everybody who looks at it."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from reticent.comparison.page import render
from reticent.comparison.plans import compare_plan
from reticent.comparison.remarks import findings, whole_cost
from reticent.comparison.results import gather
from reticent.comparison.spending import Total
from reticent.reproduction.jobs import Outcome

from .small import made_up, own_plan

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
EVIL = "</style><script>alert(1)</script>"


class Page(HTMLParser):
    """Elements with their attributes, and text that is not style."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.open, self.text, self.faults = [], [], "", []
        self.feed(text)
        self.faults += self.open

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in ("meta", "path", "use", "rect") and tag not in ("br", "img"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        if tag in ("path", "use", "rect"):
            return
        if not self.open or self.open.pop() != tag:
            self.faults.append(tag)

    def handle_data(self, data):
        if "style" not in self.open:
            self.text += data

    def all(self, tag):
        return [attrs for name, attrs in self.elements if name == tag]


def attacked(plan, outcomes):
    for cell in plan.cells:
        key = plan.attack_job(cell).key
        values = {"population.auc": 0.61, "population.tpr@0.001": 0.02}
        outcomes[key] = Outcome(
            key, values=values, intervals={"population.auc": (0.55, 0.65)}, guarantee="none"
        )
    return outcomes


@pytest.fixture(scope="module")
def public():
    names = ["dpsgd", "dpis", "dpsur:published", "selena", "sgd"]
    plan = compare_plan("digits", names, [0.5, 1, 2, 4], seeds=3, attacks=["population"])
    return gather(plan, attacked(plan, made_up(plan)))


@pytest.fixture(scope="module")
def private(tmp_path_factory):
    plan = own_plan(tmp_path_factory.mktemp("own"), ["dpsgd", "sgd"], (1.0,), seeds=2)
    spent = Total(1.4, 2e-5, 3, 2.5, unfinished=1, unbounded=("sgd",))
    return gather(plan, made_up(plan), spent)


_SAID = {}


def said(found):
    """The text of a page; drawing it takes a while."""
    if id(found) not in _SAID:
        _SAID[id(found)] = found, re.sub(r"\s+", " ", Page(render(found)).text)
    return _SAID[id(found)][1]


def test_pages_are_whole(public, private):
    for found, charts in ((public, 4), (private, 3)):
        text = render(found, "reticent compare")
        page = Page(text)
        assert page.faults == []
        ids = [attrs["id"] for _, attrs in page.elements if "id" in attrs]
        assert len(ids) == len(set(ids))
        links = [attrs["href"] for attrs in page.all("a")]
        assert len(links) > 5
        assert all(link[0] == "#" and link[1:] in ids for link in links)
        assert page.all("script") == page.all("link") == page.all("img") == []
        assert not re.search(r"(?:src|href)=\"(?!#)", text)
        assert len(page.all("svg")) == len(page.all("figure")) == charts
        assert all(len(attrs["aria-label"]) > 30 for attrs in page.all("svg"))
        assert len(page.all("details")) == charts + len(found["methods"])
        assert render(found, "reticent compare") == text  # the same bytes each time


def test_numbers_stand_in_tables(public):
    text = said(public)
    assert "91.50 % ± 2.48" in text  # 90 + 0.5 + (0, 1, 2): t of 2 degrees over √3
    assert "90.50, 91.50, 92.50" in text
    assert "1,000" in text
    assert "0.610" in text


def test_what_has_no_epsilon_is_marked(public):
    text = said(public)
    for label in ("dpsur:published", "selena", "sgd"):
        assert re.search(rf"{label}\s+no\sε", text), label
    assert "dpis no" not in text
    assert "as the public code runs" in text
    assert "resists attacks that were tried" in text


def test_only_proven_methods_are_ranked(public):
    lines = findings(public)
    assert len(lines) == 4
    assert all("dpsgd has the highest mean" in line or "dpis has" in line for line in lines)
    assert not any("published" in line or "sgd has" in line.replace("dpsgd", "") for line in lines)


def cells(values):
    """Cells of methods at ε = 1: mean and half-width."""
    common = {"epsilon": 1.0, "guarantee": "differential-privacy"}
    return {
        "epsilons": [1.0],
        "cells": [
            {"method": name, "mean": mean, "half_width": half, **common}
            for name, (mean, half) in values.items()
        ],
    }


def test_intervals_that_overlap_decide_nothing():
    assert "overlaps with that of b: these may be as good" in findings(
        cells({"a": (90.0, 1.0), "b": (88.5, 0.5), "c": (80.0, 1.0)})
    )[0].replace("a's", "its")
    assert "No other interval reaches it" in findings(cells({"a": (90, 1), "b": (88, 0.5)}))[0]
    assert "nobody can tell" in findings(cells({"a": (90, None), "b": (80, None)}))[0]
    assert findings(cells({"a": (None, None)})) == []


def test_public_models_are_not_called_private(public, private):
    assert "These models are not private." in said(public)
    assert "What all of this cost" not in said(public)
    assert "These models are not private." not in said(private)


def test_the_cost_of_all_models_is_stated(private):
    text = said(private)
    assert "What all of this cost. 3 private models were trained on these records" in text
    assert "ε = 1.4000 and δ = 2e-5" in text
    assert "less than the sum of the ε of the models, 2.5000, since" in text
    assert "One model of these has no result" in text
    assert "Models without an ε were trained too (sgd)" in text
    assert "all models together have no ε" in text
    assert "State the ε of the whole comparison with it." in text


def test_a_total_that_saves_nothing_is_called_a_sum(private):
    found = {**private, "total": Total(2.5, 2e-5, 2, 2.5).to_json()}
    told = " ".join(whole_cost(found))
    assert "It is the sum of the ε of the models." in told
    assert "no result" not in told


def test_one_model_is_not_several(private):
    found = {**private, "total": Total(1.0, 1e-5, 1, 1.0).to_json()}
    told = whole_cost(found)
    assert told[0].startswith("One private model was trained on these records, with ε = 1.0000")
    assert not any(word in " ".join(told) for word in ("Together", "sum", "were"))


def test_names_are_never_markup(private):
    found = {**private, "data": {**private["data"], "name": EVIL}}
    page = render(found, f"reticent compare --data {EVIL}")
    assert "<script" not in page
    assert Page(page).faults == []
    assert "&lt;script&gt;alert(1)" in page


def test_failures_are_told(public):
    plan = compare_plan("digits", ["dpsgd", "sgd"], [1], seeds=2)
    outcomes = made_up(plan)
    key = plan.job(plan.cells[0], 1).key
    outcomes[key] = replace(outcomes[key], state="failed", error="no memory")
    text = said(gather(plan, outcomes))
    assert "dpsgd at ε = 1, seed 1: no memory" in text
    for one in outcomes:
        outcomes[one] = Outcome(one, "failed", error="no memory")
    text = said(gather(plan, outcomes))
    assert "nothing to rank" in text
    assert "failed" in text


def test_without_a_private_method_there_is_no_curve():
    plan = compare_plan("digits", ["sgd"], [1], seeds=1)
    page = Page(render(gather(plan, made_up(plan))))
    assert page.faults == []
    assert len(page.all("svg")) == 2  # what it costs


MEASURE = """<script>
const wide = document.documentElement.clientWidth;
const out = [...document.querySelectorAll("body *")].filter(
  e => !e.closest(".scroll, pre, svg") && e.getBoundingClientRect().right > wide + 1);
const empty = [...document.querySelectorAll("svg")].filter(
  e => e.getBoundingClientRect().width < 100 || e.querySelectorAll("path").length < 2);
document.title = [out.length, empty.length,
  getComputedStyle(document.body).backgroundColor].join(";");
</script></body>"""


@pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")
def test_a_browser_finds_nothing_wrong(public, tmp_path):
    text = render(public, "reticent compare")
    (tmp_path / "page.html").write_text(text)
    copy = re.sub(r'<meta http-equiv="[^>]*>', "", text).replace("</body>", MEASURE)
    (tmp_path / "copy.html").write_text(copy)

    def seen(name, *flags):
        done = subprocess.run(
            [
                *(BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"),
                *("--disable-background-networking", "--enable-logging=stderr"),
                *(f"--user-data-dir={tmp_path / 'profile'}", *flags, "--dump-dom"),
                (tmp_path / name).as_uri(),
            ],
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
        assert "CONSOLE" not in done.stderr, done.stderr
        return done.stdout

    assert seen("page.html").count("<svg") == 4
    dark = "--blink-settings=preferredColorScheme=0"
    for flags, colour in (
        (("--window-size=390,900", dark), "rgb(20, 23, 26)"),
        (("--window-size=1280,900",), "rgb(248, 247, 244)"),
    ):
        title = re.search(r"<title>(.*?)</title>", seen("copy.html", *flags))[1]
        assert title == f"0;0;{colour}"
