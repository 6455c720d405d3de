"""The speed benchmark runs, refuses wrong steps, and its gate judges as it says. No timings."""

import copy
import gc
import importlib
import importlib.util
import json
import sys
import weakref
from pathlib import Path

import pytest
import torch

import reticent

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture(autouse=True)
def _found(monkeypatch):
    """Scripts import each other by name."""
    monkeypatch.syspath_prepend(BENCHMARKS)


def loaded(name):
    spec = importlib.util.spec_from_file_location(name, BENCHMARKS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def steps():
    """`benchmarks/steps.py`, forgotten afterwards."""
    before = set(sys.modules)
    yield importlib.import_module("steps")
    for name in {"steps", "cases", "rivals", "machine", "scaling", "profiles"} - before:
        sys.modules.pop(name, None)


def run(monkeypatch, script, out, arguments):
    told = ["--device", "cpu", "--out", str(out), *arguments.split()]
    monkeypatch.setattr(sys, "argv", [script, *told])
    importlib.import_module(script).main()


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_recorded_plain_step_keeps_what_it_works_on(steps):
    """Its replays wrote to memory that was others' by then, or nobody's."""
    case = steps.CASES["mnist-cnn"]
    model = case.build("mnist-cnn", (1, 28, 28)).cuda()
    first = next(model.parameters())
    known = weakref.ref(first)
    before = first.detach().clone()
    run = steps.rivals.plain_graph(model, *case.examples((1, 28, 28), 6, "cuda"), lr=0.1)
    del model, first
    gc.collect()
    torch.cuda.empty_cache()
    run()
    torch.cuda.synchronize()
    assert not torch.equal(known().detach(), before)


@pytest.mark.usefixtures("steps")
def test_steps_times_what_it_has_checked(tmp_path, monkeypatch):
    run(monkeypatch, "steps", tmp_path, "--case mnist-cnn --batch 6 --repeats 2")
    record = json.loads((tmp_path / "steps-cpu.json").read_text())
    case = record["cases"]["mnist-cnn"]
    assert case["batch"] == 6
    assert case["path"] == "fast"
    found = case["contestants"]
    assert found["plain"]["ratio"] == [1, 1, 1]
    assert found["reticent eager"]["error"] < 1e-3
    for one in found.values():
        assert ("ms" in one) == ("ratio" in one) != ("skipped" in one)
    assert (record["opacus"] is None) == ("skipped" in found["opacus hooks"])
    gate = loaded("gate")
    assert gate.load(tmp_path / "steps-cpu.json")["device"] == "cpu"
    text = "\n".join(loaded("tables").steps(record))
    assert "| small CNN | 6 | plain SGD |" in text
    assert "Reticent, `clipped_sum`" in text


@pytest.mark.usefixtures("steps")
def test_scaling_and_profiles_run(tmp_path, monkeypatch):
    run(monkeypatch, "scaling", tmp_path, "--points 1 --repeats 1")
    record = json.loads((tmp_path / "scaling-cpu.json").read_text())
    sizes = ["batch", "width", "depth", "sequence", "vocabulary"]
    assert [curve["what"] for curve in record["curves"]] == sizes
    figures, tables = loaded("figures"), loaded("tables")
    monkeypatch.setattr(figures, "RESULTS", tmp_path)
    (drawing,) = figures.scaling()
    drawing.save(tmp_path)
    assert ">vocabulary<" in (tmp_path / "scaling-cpu.svg").read_text()
    assert "| depth |" in "\n".join(tables.scaling(record))
    run(monkeypatch, "profiles", tmp_path, "--case mnist-cnn --batch 6 --steps 1 --top 6")
    record = json.loads((tmp_path / "profile-mnist-cnn-cpu.json").read_text())
    shares = [part["share"] for part in record["contestants"]["plain"]["top"]]
    assert len(shares) == 6
    assert shares == sorted(shares, reverse=True)
    assert "aten::" in "\n".join(tables.profiles([record]))


def test_audit_benchmarks_run(tmp_path, monkeypatch):
    canaries = importlib.import_module("canaries")
    monkeypatch.setattr(canaries, "SETTINGS", ((2, 1.0, 200, 60),))
    run(monkeypatch, "canaries", tmp_path, "--epsilon 4 --seeds 1 2")
    tables = importlib.import_module("audit_tables")
    record = json.loads((tmp_path / "canaries-cpu.json").read_text())
    assert "| 2 | 1 | 200 | 60 |" in "\n".join(tables.canaries(record, "a machine"))
    attacks = importlib.import_module("attacks")
    monkeypatch.setattr(attacks, "BATCH", 100)
    monkeypatch.setattr(attacks, "METHODS", {"dpsgd": reticent.DPSGD(batch=100, clip=1.0)})
    words = "--data digits --model digits-cnn --records 600 --shadows 2 --targets 1 --epochs 1"
    run(monkeypatch, "attacks", tmp_path, f"{words} --only over-fitted dpsgd")
    record = json.loads((tmp_path / "attacks-digits-600-cpu.json").read_text())
    text = "\n".join(tables.attacks(record, "a machine"))
    assert "| over-fitted | none |" in text
    assert "| dpsgd | 4 |" in text


@pytest.mark.parametrize("fault", ["no clipping", "an example left out", "the first step only"])
def test_a_wrong_step_is_found(steps, fault):
    bench = steps.Bench("mnist-cnn", "cpu", 6)

    def make(model, inputs, targets, *, clip, **options):
        if fault == "no clipping":
            return steps.private(False, model, inputs, targets, clip=1e6, **options)
        if fault == "an example left out":
            options["lr"] *= 5 / 6
            return steps.private(False, model, inputs[1:], targets[1:], clip=clip, **options)
        mine = inputs.clone()
        once = steps.private(False, model, mine, targets, clip=clip, **options)
        return lambda: (once(), mine.mul_(1.5))

    found = bench.admit(steps.Contestant(make, True))
    assert found["error"] > 10 * steps.TOLERANCE["float32"]
    assert "wrong" in found


def test_a_contestant_that_fails_is_recorded_and_the_others_go_on(steps, monkeypatch):
    def broken(*_, **__):
        raise RuntimeError("out of memory\nand more")

    def dropping(model, *_, **__):
        return broken

    monkeypatch.setattr(
        steps,
        "contestants",
        lambda *_: {
            "plain": steps.Contestant(steps.rivals.plain, False),
            "reticent eager": steps.Contestant(broken, True),
            "opacus hooks": steps.Contestant(dropping, False),
            "opacus ghost": steps.Contestant(broken, True, skipped="not installed"),
        },
    )
    found = steps.Bench("mnist-cnn", "cpu", 6).measure(2, False, True)["contestants"]
    assert found["plain"]["ratio"] == [1, 1, 1]
    assert found["reticent eager"] == {"failed": "RuntimeError: out of memory"}
    assert found["opacus hooks"] == {"failed": "RuntimeError: out of memory"}
    assert found["opacus ghost"] == {"skipped": "not installed"}


def test_smooth_models_have_the_layers_of_those_timed(steps):
    for name, case in steps.CASES.items():
        usual, smooth = (case.build(name, case.cpu[0], smooth=s) for s in (False, True))
        for (a, p), (b, q) in zip(usual.named_parameters(), smooth.named_parameters(), strict=True):
            assert a == b
            assert torch.equal(p, q)


RECORD = {
    "what": "steps",
    "device": "cpu",
    "machine": {
        "processor": "P",
        "accelerator": None,
        "threads": 2,
        "versions": {"torch": "2.13.0"},
    },
    "cases": {
        name: {
            "batch": 8,
            "input": [3],
            "contestants": {
                "plain": {"ms": [1, 1, 1], "ratio": [1, 1, 1]},
                "reticent": {"ms": [1, 1, 1], "ratio": [1.45, 1.5, 1.55]},
                "opacus hooks": {"ms": [1, 1, 1], "ratio": [3, 3, 3]},
            },
        }
        for name in ("one", "two")
    },
}


@pytest.fixture
def judged(tmp_path, capsys):
    """Judge a changed record against the one kept: (exit status, printed, complaints)."""
    gate = loaded("gate")

    def judge(new, kept=RECORD, other_machine=False):
        paths = tmp_path / "new.json", tmp_path / "kept.json"
        for path, record in zip(paths, (new, kept), strict=True):
            path.write_text(record if isinstance(record, str) else json.dumps(record))
        return (gate.judge(*paths, other_machine), *capsys.readouterr())

    return judge


def changed(value, case="two", contestant="reticent", key="ratio"):
    record = copy.deepcopy(RECORD)
    record["cases"][case]["contestants"][contestant][key] = value
    return record


@pytest.mark.parametrize(
    ("ratio", "status"),
    [
        ([1.45, 1.5, 1.55], 0),
        ([1.6, 1.64, 1.7], 0),  # within the least band, 10 %
        ([1.6, 1.66, 1.7], 1),
        ([1.0, 1.0, 1.0], 0),  # faster is fine
        ([1.4, 1.8, 2.2], 0),  # a wide spread widens the band
        ([1.7, 2.1, 2.5], 1),
    ],
)
def test_the_gate_allows_for_noise_and_no_more(judged, ratio, status):
    code, printed, complaints = judged(changed(ratio))
    assert code == status
    assert "two" in printed
    assert ("regressed: two, reticent: slower" in complaints) == bool(status)
    assert "one" not in complaints


def test_the_gate_is_about_our_own_steps(judged):
    assert judged(changed([9, 9, 9], contestant="opacus hooks"))[0] == 0


def test_a_case_or_step_that_is_gone_fails_the_gate(judged):
    record = copy.deepcopy(RECORD)
    del record["cases"]["two"]
    assert judged(record)[0] == 1
    code, _, complaints = judged(RECORD, kept=changed([1.45, 1.5, 1.55]) | {"cases": {}})
    assert (code, "no ratio of ours" in complaints) == (2, True)
    record = copy.deepcopy(RECORD)
    record["cases"]["one"]["contestants"]["reticent"] = {"wrong": "off by 1"}
    code, _, complaints = judged(record)
    assert (code, "one, reticent: wrong: off by 1" in complaints) == (1, True)


@pytest.mark.parametrize("ratio", [[1, float("nan"), 2], None, "fast", [1.5], [0, 0, 0]])
def test_a_ratio_that_is_no_number_fails_the_gate(judged, ratio):
    code, _, complaints = judged(changed(ratio))
    assert (code, "two, reticent: its ratio is not a number" in complaints) == (1, True)
    assert judged(RECORD, kept=changed(ratio))[0] == 2


@pytest.mark.parametrize(
    "text",
    [
        "",
        json.dumps(RECORD)[:200],
        "[]",
        json.dumps({"what": "trials"}),
        json.dumps({"what": "steps", "device": "cpu"}),
        json.dumps(RECORD | {"cases": {"one": {"batch": 8, "ratio": 2}}}),  # the older form
    ],
)
def test_a_file_that_is_no_record_is_refused(judged, text):
    for pair in ((text, RECORD), (RECORD, text)):
        code, printed, complaints = judged(*pair)
        assert (code, printed) == (2, "")
        assert complaints.startswith("cannot compare: ")


def test_a_missing_file_is_refused(tmp_path, capsys):
    assert loaded("gate").judge(tmp_path / "none.json", None, False) == 2
    assert "none.json cannot be read" in capsys.readouterr().err


@pytest.mark.parametrize("what", ["processor", "accelerator", "threads", "torch"])
def test_other_machines_are_refused_unless_asked_for(judged, what):
    record = copy.deepcopy(RECORD)
    told = record["machine"]["versions"] if what == "torch" else record["machine"]
    told[what] = "another"
    code, _, complaints = judged(record)
    assert (code, what in complaints, "--other-machine" in complaints) == (2, True, True)
    assert judged(record, other_machine=True)[0] == 0


def test_other_batches_and_wild_spreads_are_refused(judged):
    record = copy.deepcopy(RECORD)
    record["cases"]["one"]["batch"] = 9
    assert judged(record)[0] == 2
    code, _, complaints = judged(changed([0.5, 1.5, 3.5]))
    assert (code, "calm machine" in complaints) == (2, True)


def test_tables_skip_records_of_the_older_form():
    old = {"what": "steps", "device": "cuda", "cases": {"small CNN": {"batch": 1, "ratio": 2}}}
    assert loaded("tables").steps(old) == []


@pytest.mark.usefixtures("steps")
def test_kernel_names_are_shortened():
    profiles = importlib.import_module("profiles")
    name = "void at::native::(anonymous namespace)::sum<float, Op<int, 4>>(float*, int)"
    assert profiles.shortened(name) == "at::native::sum"
    assert len(profiles.shortened("k" * 99)) == 60
