import hashlib
import itertools
import json
import math
import re
import stat

import pytest
from safetensors.torch import load_file, save_file

from reticent.errors import CheckpointError
from reticent.report import write_card, write_report
from reticent.report.style import DARK, LIGHT, contrast, sheet

from .runs import Page, audited, changed, diagnosed, read, write

EVIL = "</style></title>--><script>alert('1')</script><img src=x onerror=\"alert(2)\">&amp;"


def page_of(folder, **options):
    return Page(write_report(folder, **options).read_text(encoding="utf-8"))


def everything(folder):
    audited(folder)
    diagnosed(folder)
    return (page_of(folder), page_of(folder, private=True))


def test_pages_are_whole(folder):
    for page in everything(folder):
        assert page.faults == []
        ids = [attrs["id"] for _, attrs, _ in page.elements if "id" in attrs]
        assert len(ids) == len(set(ids)) > 10
        links = [attrs["href"] for attrs in page.all("a")]
        assert len(links) > 5
        assert all(link[0] == "#" and link[1:] in ids for link in links)
        assert page.all("html") == [{"lang": "en"}]
        assert len(page.all("main")) == len(page.all("h1")) == len(page.all("title")) == 1


def test_headings_come_in_order(folder):
    for page in everything(folder):
        levels = [int(tag[1]) for tag, _, _ in page.elements if re.fullmatch(r"h[1-6]", tag)]
        assert levels[0] == 1
        assert all(b <= a + 1 for a, b in itertools.pairwise(levels))
        for attrs in page.all("section"):
            assert attrs["aria-labelledby"] in {h.get("id") for h in page.all("h2")}


def test_every_chart_has_a_name_and_its_numbers(folder):
    public, private = everything(folder)
    assert (len(public.all("svg")), len(private.all("svg"))) == (3, 7)
    for page in (public, private):
        for attrs in page.all("svg"):
            assert attrs["role"] == "img"
            assert len(attrs["aria-label"]) > 30
        inside = [e for e in page.elements if "figure" in e[2]]
        figures = page.all("figure")
        for tag in ("svg", "figcaption", "details", "summary", "table", "caption"):
            assert len([e for e in inside if e[0] == tag]) == len(figures), tag
        assert all("details" in path for tag, _, path in inside if tag == "table")


def test_charts_keep_to_themselves(folder):
    for path in (write_report(folder), write_report(folder, private=True)):
        text = path.read_text()
        assert "#01" not in text  # stand-in colours
        assert "DejaVu" not in text
        assert text.count("<style") == 1
        for used in re.findall(r"url\(#([^)]*)\)|href=\"#([^\"]*)\"", text):
            assert f'id="{used[0] or used[1]}"' in text
        assert set(re.findall(r"var\(--([\w-]+)\)", text)) <= {*LIGHT, "sans", "mono"}


def test_nothing_is_loaded_and_nothing_runs(folder):
    for page in everything(folder):
        tags = {tag for tag, _, _ in page.elements}
        assert not tags & {"script", "link", "img", "iframe", "object", "embed", "image", "base"}
        for _, attrs, _ in page.elements:
            assert not [name for name in attrs if name.startswith("on") or name == "src"]
            assert not [v for n, v in attrs.items() if "href" in n and not v.startswith("#")]
        policy = [a["content"] for a in page.all("meta") if "http-equiv" in a]
        assert len(policy) == 1
        assert policy[0].startswith("default-src 'none'")
    assert "//" not in re.sub(r"http-equiv", "", (folder / "report.html").read_text())
    assert "@import" not in sheet()
    for name in ("report.html", "report.private.html"):
        assert (folder / name).stat().st_size < 1_500_000


def test_the_page_says_what_run_json_says(folder):
    run, page = read(folder), page_of(folder)
    epsilon = run["statement"]["epsilon"]
    shown = math.ceil(epsilon * 1e4) / 1e4
    assert shown >= epsilon
    assert f"ε = {shown:.4f} and δ = 0.0001" in page.text
    assert "one record added or removed" in page.text
    assert f"the accountant “{run['statement']['accountant']}”" in page.text
    for note in run["ledger"]["notes"]:
        assert note in page.text
    assert f"{100 * run['metrics'][-1]['accuracy']:.2f} %" in page.text
    each = [sum(row) for row in run["held_out"]["confusion"]]
    assert f"the largest class alone {100 * max(each) / sum(each):.2f} %" in page.text
    for line in run["metrics"]:
        assert f"{line['accuracy']:.4f}" in page.text
        assert f"{line['loss']:.4f}" in page.text
    rate = f"{60 / 300:.4g}"
    assert f"sampling rate {rate}, noise multiplier {run['method']['noise']:.4g}" in page.text
    for name, version in run["versions"].items():
        assert name in page.text
        assert version in page.text
    assert 'data = "digits"' in page.text
    assert "reticent train --config run.toml" in page.text
    assert "spends its ε a second time" in page.text


def test_confusion_and_classes_are_the_runs(folder):
    run = read(folder)
    page = page_of(folder)
    counts = run["held_out"]["confusion"]
    total, right = sum(map(sum, counts)), sum(counts[k][k] for k in range(3))
    assert right / total == pytest.approx(run["metrics"][-1]["accuracy"])
    labels = [attrs["aria-label"] for attrs in page.all("svg")]
    assert any(f"{right:,} of {total:,} held-out records" in label for label in labels)
    rows = write_report(folder).read_text()
    for name, row in zip(("cat", "dog", "newt"), counts, strict=True):
        cells = "".join(f'<td class="n">{cell}</td>' for cell in row)
        assert f'<th scope="row">{name}</th>{cells}</tr>' in rows
        share = f"{100 * row[('cat', 'dog', 'newt').index(name)] / sum(row):.1f} %"
        assert re.search(
            rf'<th scope="row">{name}</th><td class="n">{sum(row)}</td>'
            rf'<td class="n">\d+</td><td class="n">{share}</td>',
            rows,
        )


def test_a_page_is_the_same_each_time(folder):
    assert write_report(folder).read_bytes() == write_report(folder).read_bytes()


def test_what_others_named_is_never_markup(folder):
    run = read(folder)
    run["config"]["settings"] = {**run["config"]["settings"], "data": EVIL, "model": EVIL}
    run["config"]["settings"]["model_options"] = {EVIL: EVIL}
    run["config"]["public_seeds"] = {EVIL: EVIL}
    run["ledger"]["notes"] = [EVIL]
    for entry in run["ledger"]["entries"]:
        entry["purpose"] = EVIL
    run["method"] = {**run["method"], "name": EVIL, EVIL: EVIL, "clip": {EVIL: EVIL}}
    run["statement"]["accountant"] = EVIL
    run["versions"] = {EVIL: EVIL}
    run["held_out"]["classes"] = [EVIL, "$x$", "\x00\ud800 \n"]
    write(folder, run)
    audited(folder, wrong=[EVIL])
    audit = json.loads((folder / "audit.json").read_text())
    audit["membership"]["about"] = EVIL
    audit["membership"]["attacks"] = {EVIL: audit["membership"]["attacks"]["SECRET attack"]}
    audit["canaries"]["bounds"][0].update(family=EVIL, assumes=EVIL)
    audit["conduct"]["checks"][0].update(name=EVIL, detail=EVIL)
    (folder / "audit.json").write_text(json.dumps(audit))
    for private in (False, True):
        page = page_of(folder, private=private)
        assert page.faults == []
        tags = {tag for tag, _, _ in page.elements}
        assert not tags & {"script", "img"}
        assert len(page.all("style")) == len(page.all("title")) == 1
        assert page.text.count("<script>alert('1')</script>") > 10


def test_private_numbers_are_in_no_public_page(folder):
    before = page_of(folder).text
    public, private = everything(folder)
    told = "An audit of this folder exists."
    assert told in public.text
    assert told not in before
    assert "SECRET" not in (folder / "report.html").read_text()
    labels = " ".join(attrs["aria-label"] for attrs in public.all("svg"))
    for secret in ("0.612", "0.87654", "0.877", "7,654", "34.57", "123 MiB", "Trials"):
        assert secret not in public.text + labels, secret
    for shown in ("SECRET attack", "0.612", "0.8765", "7,654", "34.57 %", "123 MiB", "Trials per"):
        assert shown in private.text, shown
    assert "Private: do not pass this page on." in private.text
    assert "do not pass this page on" not in public.text
    assert stat.S_IMODE((folder / "report.private.html").stat().st_mode) == 0o600
    assert stat.S_IMODE((folder / "report.html").stat().st_mode) == 0o644
    elsewhere = write_report(folder, folder / "else.html", private=True)
    assert stat.S_IMODE(elsewhere.stat().st_mode) == 0o600


def test_an_audit_that_found_something_is_not_kept_quiet(folder):
    assert "do not rely" not in page_of(folder).text
    audited(folder, passed=False, wrong=["canaries: SECRET"])
    page = page_of(folder)
    assert "An audit of this run found something wrong with it: do not rely" in page.text
    assert "SECRET" not in page.text
    assert "canaries: SECRET" in page_of(folder, private=True).text


def test_an_audit_of_another_run_says_nothing_of_this_one(folder):
    audited(folder, passed=False)
    changed(folder, seconds=77)
    page = page_of(folder)
    assert "No audit is in this folder." in page.text
    assert "do not rely" not in page.text
    assert "No audit of this run" in page_of(folder, private=True).text


def test_books_that_do_not_add_up_are_told_at_once(folder):
    run = read(folder)
    run["statement"]["epsilon"] /= 2
    write(folder, run)
    first = page_of(folder).text
    assert "do not add up, see below: do not rely on this ε" in first
    assert first.index("do not add up") < first.index("What this does not cover")


def test_a_stated_seed_is_told_at_once(folder):
    from reticent.training.train import SEEDED_NOTE

    run = read(folder)
    assert "stated seed" not in page_of(folder).text
    run["ledger"]["notes"].append(SEEDED_NOTE)
    write(folder, run)
    text = page_of(folder).text
    assert text.index("came from a stated seed") < text.index("What this does not cover")


def test_paths_are_not_told(folder):
    run = read(folder)
    run["config"]["settings"].update(
        data="/home/ann/people.csv", root="/home/ann", data_options={"test": "C:\\ann\\more.csv"}
    )
    write(folder, run)
    text = write_report(folder).read_text()
    assert "people.csv" in text
    assert "more.csv" in text
    assert "ann" not in text.replace("planned", "").replace("cannot", "")


@pytest.mark.parametrize("name", ["held_out", "conduct", "metrics", "versions", "config"])
def test_older_runs_have_less_to_say(folder, name):
    changed(folder, **{name: None})
    page = page_of(folder)
    assert page.faults == []
    if name == "held_out":
        assert "Results by class were not kept" in page.text
        assert len(page.all("svg")) == 1
    if name == "config":
        assert "This run was not made by reticent train" in page.text


def test_a_run_that_was_not_evaluated(folder):
    changed(folder, metrics=[], held_out=None)
    page = page_of(folder)
    assert "This run was not evaluated." in page.text
    assert page.all("svg") == []


def test_a_run_that_diverged(folder):
    run = read(folder)
    for line in run["metrics"][2:]:
        line["loss"] = None
    changed(folder, metrics=run["metrics"])
    assert page_of(folder).faults == []


@pytest.mark.parametrize(
    "values",
    [
        {"ledger": {}},
        {"statement": "none"},
        {"statement": None},
        {"held_out": {"confusion": [[1, 2], [3]]}},
        {"held_out": {"confusion": [[-1]]}},
        {"metrics": "x"},
        {"metrics": [{"step": 1, "accuracy": "x"}, {"step": 2, "accuracy": "y"}]},
        {"steps": "many"},
        {"method": None},
        {"config": {"settings": 5}},
    ],
)
def test_damaged_runs_are_refused_by_name(folder, values):
    changed(folder, **values)
    with pytest.raises(CheckpointError, match=r"mine|run\.json"):
        write_report(folder)
    assert not (folder / "report.html").exists()


def test_folders_that_hold_no_run(folder, tmp_path):
    for place in (tmp_path / "nowhere", tmp_path):
        with pytest.raises(CheckpointError, match="give the folder of a run"):
            write_report(place)
    for text in ("{", "[]", '{"format": "other"}'):
        (folder / "run.json").write_text(text)
        with pytest.raises(CheckpointError, match=r"run\.json"):
            write_report(folder)


@pytest.mark.parametrize("text", ["{", "[]", '{"format": "reticent-audit/9"}'])
def test_a_damaged_audit_is_refused_where_it_matters(folder, text):
    (folder / "audit.json").write_text(text)
    assert "An audit of this folder exists." in page_of(folder).text
    with pytest.raises(CheckpointError, match=r"audit\.json"):
        write_report(folder, private=True)


def _other_weights(path):
    save_file({name: value + 1 for name, value in load_file(path).items()}, path)


NO_MODEL = {
    "nonsense": (lambda path: path.write_bytes(b"nonsense"), "is not the file that this run wrote"),
    "gone": (lambda path: path.unlink(), "does not exist"),
    "other": (_other_weights, "is not the file that this run wrote"),
}


@pytest.mark.parametrize("name", NO_MODEL)
def test_a_model_that_is_not_the_runs_is_told_first(folder, name):
    about, kept = "is about the model that this run released, not about what lies", read(folder)
    check, unknown = "the model is the one this run released", "cannot be told"
    sha256 = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    assert kept["model_sha256"] == sha256
    page, card = page_of(folder).text, write_card(folder).read_text()
    assert f"{check} yes model.safetensors has the SHA-256 in run.json" in page
    for text in (page, card):
        assert about not in text
        assert sha256 in text
        assert " bytes" in text
    change, said = NO_MODEL[name]
    change(folder / "model.safetensors")
    page, card = page_of(folder).text, write_card(folder).read_text()
    assert page.index(f"model.safetensors {said}") < page.index("The training that made this model")
    assert f"{check} no model.safetensors {said}" in page
    assert "The books of this run do not add up" not in page
    for text in (page, card):
        assert about in text
        assert sha256 in text  # of the model that was released
        assert " bytes" not in text
        assert "parameters" not in text.partition("Model card")[2]
    # a run of an earlier version does not know its model
    changed(folder, model_sha256=None)
    page = page_of(folder).text
    assert (unknown in page) == (name == "other")
    assert (about in page) == (name != "other")


def test_unfinished_runs_say_so(tmp_path):
    (tmp_path / "settings.json").write_text('{"data": "<b>digits</b>", "method": "dpsgd"}')
    page = page_of(tmp_path)
    assert page.faults == []
    assert "nothing is guaranteed about it" in page.text
    assert "--resume" in page.text
    assert 'data = "<b>digits</b>"' in page.text
    other = tmp_path / "other"
    other.mkdir()
    (other / "checkpoint.secret.pt").write_bytes(b"not to be read")
    assert "has no result yet" in page_of(other).text


def test_many_classes_are_not_a_matrix(folder):
    counts = [[3 if i == j else int((i + 1) % 100 == j) for j in range(100)] for i in range(100)]
    changed(folder, held_out={"classes": [f"class {k}" for k in range(100)], "confusion": counts})
    path = write_report(folder)
    assert path.stat().st_size < 1_500_000
    page = Page(path.read_text())
    assert page.faults == []
    assert len(page.all("svg")) == 2
    assert "The most frequent mistakes" in page.text


def test_colours_can_be_read():
    for palette in (LIGHT, DARK):
        for ground in ("page", "card", "tint", "warn-card"):
            for name in ("ink", "soft", "link", "warn", "good", *(f"c{k}" for k in range(1, 8))):
                if name != "soft" and ground == "warn-card" and name not in ("ink", "warn"):
                    continue  # nothing else stands there
                assert contrast(palette[name], palette[ground]) >= 4.5, (name, ground)
    assert set(LIGHT) == set(DARK)


def test_letters_on_coloured_cells_can_be_read():
    from reticent.report.drawings import DEEPEST

    for palette in (LIGHT, DARK):
        for name in ("c1", "c2"):
            over = [
                round(
                    DEEPEST * int(palette[name][k : k + 2], 16)
                    + (1 - DEEPEST) * int(palette["card"][k : k + 2], 16)
                )
                for k in (1, 3, 5)
            ]
            cell = "#" + "".join(f"{part:02x}" for part in over)
            assert contrast(palette["ink"], cell) >= 4.5
