import json
import math
import re
import sys

import numpy as np
import pytest

import reticent as rt
from reticent.cli.settings import Settings, resolve
from reticent.data import lookup
from reticent.privacy import Ledger, SampledGaussian
from reticent.report import write_card
from reticent.report.again import to_toml
from reticent.report.folder import without_paths
from reticent.report.spent import spent_at
from reticent.report.words import epsilon_text, guarantee, most_found, most_right, not_covered, up

from .runs import changed, made, read, write

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

EVIL = "# <script>x</script> | `code` **b** [l](http://x)\n---\n```"


def worst_pair(epsilon, delta):
    """The two distributions that every (ε, δ) mechanism can be simulated from (Kairouz 2015)."""
    e = math.exp(epsilon)
    used = np.array([delta, (1 - delta) * e / (1 + e), (1 - delta) / (1 + e), 0.0])
    return used, used[::-1]


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0, 8.0])
@pytest.mark.parametrize("delta", [0.0, 1e-5, 0.05])
def test_bounds_on_attackers_are_those_of_the_worst_mechanism(epsilon, delta):
    used, unused = worst_pair(epsilon, delta)
    # every test between the two, by its randomised likelihood-ratio threshold
    order = np.argsort(-used / np.maximum(unused, 1e-300))
    tpr = np.concatenate([[0], np.cumsum(used[order])])
    fpr = np.concatenate([[0], np.cumsum(unused[order])])
    for accused in (0.0, 1e-4, 0.01, 0.2, 0.9, 1.0):
        best = np.interp(accused, fpr, tpr) if accused else tpr[fpr == 0].max()
        assert most_found(epsilon, delta, accused) == pytest.approx(best, abs=1e-12)
    right = 0.5 * np.maximum(used, unused).sum()
    assert most_right(epsilon, delta) == pytest.approx(right, abs=1e-12)


def test_bounds_are_rounded_up():
    generator = np.random.default_rng(0)
    for value in generator.uniform(0, 1, 200):
        assert float(up(value)[:-2]) >= 100 * value - 1e-6
        assert float(up(value)[:-2]) <= 100 * value + 0.1 + 1e-9
        assert value <= float(epsilon_text(value)) <= value + 1e-4 + 1e-12
    assert epsilon_text(math.inf) == epsilon_text(None) == "no bound"
    assert up(1.0) == up(0.99999).replace("99.9", "100.0")


def run_of(kind, epsilon=None, **more):
    statement = {"epsilon": epsilon, "delta": 1e-5, "accountant": "pld", "adjacency": "add-remove"}
    return {"guarantee": kind, "statement": statement, **more}


def test_each_guarantee_has_its_own_sentence():
    private = guarantee(run_of("differential-privacy", 1.0))
    text = " ".join((private.sentence, *private.plain))
    assert "ε = 1.0000" in text
    assert "2.72 times" in text  # e, rounded up
    assert f"at most {math.ceil(1000 * (math.e * 0.01 + 1e-5)) / 10}" in text.replace("\xa0", " ")
    assert "hardly anything" not in text
    assert "hardly anything" in " ".join(guarantee(run_of("differential-privacy", 20.0)).plain)
    for kind in ("none", "empirical", "differential-privacy", "something new"):
        other = guarantee(run_of(kind))  # no ε in any of them
        text = " ".join((other.title, other.sentence, *other.plain)).lower()
        assert "no privacy guarantee" in text or "nothing is proved" in text
        assert "differentially private" not in text
        assert dict(other.numbers)["ε"] == "none"


def test_the_certificate_is_that_of_the_run(tmp_path):
    method = rt.PDSGD(batches=5, sigma=0.05, gamma=50.0, threshold=3)
    run = read(made(tmp_path / "pd", method=method, budget=False))
    found = guarantee(run)
    assert found.kind == "plausible-deniability"
    assert "This is not differential privacy." in found.sentence
    assert dict(found.numbers) == {"ε": "none", "plausible batches": "3 of 5"}
    limits = [x for x in run["released"]["certificate"]["limits"] if x["update"] is not None]
    assert limits
    for limit in limits:
        assert any(f"{math.sqrt(limit['update']):.4g}" in text for text in found.plain)
    assert any("no bound on what the model reveals" in text for text in found.plain)


def test_what_is_not_covered():
    names = " ".join(x.name for x in not_covered({}, {"features": "none"}))
    for word in ("one person", "Other runs", "search", "Held-out", "everybody"):
        assert word in names
    assert "Features" not in names
    assert "scattering" in not_covered({}, {"features": "scattering"})[-1].text


# -- ε on the way -----------------------------------------------------------------------------


def test_epsilon_on_the_way_is_the_ledgers(finished):
    run = read(finished)
    found = spent_at(run, [4, 12, 20])
    for step, epsilon in zip((4, 12), found, strict=False):
        ledger = Ledger()
        ledger.charge(SampledGaussian(60 / 300, run["method"]["noise"]), "x", count=step)
        assert epsilon == pytest.approx(ledger.epsilon(1e-4), rel=1e-12)
    assert found[2] == run["statement"]["epsilon"]
    assert found == sorted(found)


def test_what_was_paid_before_counts_from_the_start(finished):
    run = read(finished)
    before = {"charge": SampledGaussian(1.0, 5.0).to_json(), "count": 2, "purpose": "statistics"}
    run["ledger"]["entries"].insert(0, {**before, "adaptive": False})
    run["conduct"]["paid_before"] = [before]
    run["statement"]["epsilon"] = 9.0
    ledger = Ledger()
    ledger.charge(SampledGaussian(1.0, 5.0), "statistics", count=2)
    ledger.charge(SampledGaussian(60 / 300, run["method"]["noise"]), "x", count=4)
    assert spent_at(run, [4]) == [pytest.approx(ledger.epsilon(1e-4), rel=1e-12)]


def test_decaying_noise_is_charged_in_its_order(tmp_path):
    method = rt.methods.NoiseDecay(
        batch=60, noise=5.0, schedule="step", rate=0.9, period=1, stage=5
    )
    run = read(made(tmp_path / "decay", method=method))
    first = run["ledger"]["entries"][0]
    assert first["count"] == 5
    ledger = Ledger()
    ledger.charge(SampledGaussian(60 / 300, first["charge"]["multiplier"]), "x", count=4)
    assert spent_at(run, [4]) == [pytest.approx(ledger.epsilon(1e-4), rel=1e-12)]
    run["method"]["name"] = "of which nothing is known"
    assert spent_at(run, [4]) is None


def test_no_epsilon_where_the_order_is_not_known(finished):
    run = read(finished)
    run["ledger"]["entries"][0]["count"] = 21
    assert spent_at(run, [4]) is None
    run = read(finished)
    run["ledger"]["filter_order"] = 8.0
    run["ledger"]["entries"][0]["adaptive"] = True
    assert spent_at(run, [4]) is None
    run = read(finished)
    run["statement"]["epsilon"] = None
    assert spent_at(run, [4]) is None


# -- doing it again ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "flags",
    [
        {},
        {"method": "dpsur"},
        {"method": "pd-sgd"},
        {"method": "selena"},
        {"method": "sgd"},
        {"method": "noise-decay", "epsilon": 2.0, "method_options": {"schedule": "time"}},
        {"method": "dpagd"},
        {"data": "cifar10", "features": "scattering"},
        {"data": "mnist", "noise": 2.0},
        {"data": "fashion-mnist", "steps": 10, "lr": 1e-5, "model": "linear"},
        {"non_private": True, "epochs": 2.5},
    ],
)
def test_the_settings_of_a_page_are_those_of_the_run(flags, tmp_path):
    settings = resolve(None, flags)
    path = tmp_path / "run.toml"
    path.write_text(to_toml(without_paths(settings.to_json())))
    assert resolve(path, {}) == settings


def test_toml_of_all_kinds_of_values():
    values = {
        "text": 'a"b\\c\n\x7f\u2028é😀',
        "flag": True,
        "whole": -3,
        "real": 1e-05,
        "huge": 1e300,
        "list": [1, 2.5, "x", [True]],
        "table": {"odd key": {"x": 1}, "y": "z"},
    }
    assert tomllib.loads(to_toml({**values, "none": None, "empty": {}})) == values
    assert Settings.__annotations__.keys() >= {"data", "method"}


# -- the card ---------------------------------------------------------------------------------


def front(text):
    """The front matter's lines; each value is JSON, or plain YAML numbers and words."""
    head, body = re.fullmatch(r"---\n(.*?)\n---\n(.*)", text, re.DOTALL).groups()
    return dict(line.split(": ", 1) for line in head.splitlines() if ": " in line), body


def test_the_card_says_what_run_json_says(folder):
    run = read(folder)
    path = write_card(folder)
    assert path == folder / "MODEL_CARD.md"
    head, body = front(path.read_text())
    assert json.loads(head["tags"]) == ["privacy", "differential-privacy", "dpsgd"]
    assert json.loads(head["datasets"]) == ["digits"]
    assert json.loads(head["pipeline_tag"]) == "image-classification"
    assert float(head["epsilon"]) == pytest.approx(run["statement"]["epsilon"], abs=1e-4)
    assert float(head["epsilon"]) >= run["statement"]["epsilon"]
    assert re.fullmatch(r"\d\.\d+e-\d+", head["delta"])  # a number to YAML 1.1
    assert float(head["delta"]) == 1e-4
    accuracy = run["metrics"][-1]["accuracy"]
    assert f"value: {accuracy:.6f}" in head["    metrics"]
    assert f"{100 * accuracy:.2f} %" in body
    assert lookup("digits").licence in body
    assert guarantee(run).sentence in body.replace("\\", "")
    toml = re.search(r"```toml\n(.*?)```", body, re.DOTALL)[1]
    assert tomllib.loads(toml) == run["config"]["settings"]


def test_a_card_without_epsilon_states_none(folder):
    run = changed(folder, guarantee="none")
    run["statement"]["epsilon"] = None
    write(folder, run)
    head, body = front(write_card(folder).read_text())
    assert json.loads(head["guarantee"]) == "none"
    assert not {"epsilon", "delta"} & set(head)
    assert "differential-privacy" not in head["tags"]
    assert "This training gives no privacy guarantee." in body


def test_names_cannot_break_out_of_the_card(folder):
    run = read(folder)
    run["config"]["settings"].update(data=EVIL, model=EVIL)
    run["ledger"]["notes"] = [EVIL]
    write(folder, run)
    text = write_card(folder).read_text()
    head, body = front(text)
    assert json.loads(head["datasets"]) == [EVIL]
    prose = re.sub(r"(`{3,})toml\n.*?\n\1", "", body, flags=re.DOTALL)
    assert "<script>" not in prose
    assert "\n# <" not in prose
    assert "[l](" not in prose
    assert prose.count("\n| ") == body.count("\n| ")
    for line in prose.splitlines():
        if line.startswith("| model"):
            assert len(re.findall(r"(?<!\\)\|", line)) == 3


def test_cards_hold_nothing_private(folder):
    from .runs import audited, diagnosed

    audited(folder, passed=True)
    before = write_card(folder).read_text()
    diagnosed(folder)
    assert write_card(folder).read_text() == before
    assert "SECRET" not in before
