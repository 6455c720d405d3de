"""`reticent predict`: new records become numbers as those of the training did, from three files."""

from __future__ import annotations

import csv
import json
import math
import shutil
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from safetensors.torch import load_file as load_tensors
from torch import nn

from reticent.cli.preparing import STATISTICS_FILE

from .calling import call, refuse
from .own_files import write_people, write_pictures, write_reviews
from .test_own_data import STATED

QUICK = ("--device", "cpu", "--quiet", "--coin-seed", 3, "--steps", 20)
PUBLIC = ("run.json", "model.safetensors", STATISTICS_FILE)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RETICENT_DATA", str(tmp_path / "home"))
    return tmp_path


def passed_on(run: str, *training: str) -> str:
    """A folder with the files that may be passed on, and nothing else of the run or its records."""
    Path("given").mkdir()
    for name in PUBLIC:
        if (Path(run) / name).exists():
            shutil.copy(Path(run) / name, "given")
    shutil.rmtree(run)
    for path in map(Path, training):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    return "given"


def predict(run: str, data: str, *words: object) -> tuple[list[dict[str, str]], dict[str, Any]]:
    """The lines of the file that is written, and what the command said."""
    shown = call("predict", run, "--data", data, "--out", "told.csv", "--json", *words)
    with open("told.csv", newline="") as file:
        return list(csv.DictReader(file)), json.loads(shown[shown.index("{") :])


def accuracy(lines: list[dict[str, str]], labels: list[str]) -> float:
    return float(
        np.mean([line["predicted"] == label for line, label in zip(lines, labels, strict=True)])
    )


def stated_accuracy(run: str) -> float:
    return json.loads((Path(run) / "run.json").read_text())["metrics"][-1]["accuracy"]


def small_run(*words: object) -> str:
    """A table of an age and a city; all is stated."""
    rows = "".join(
        f"{20 + k},{'Rome' if k % 3 else 'Oslo'},{'yes' if k > 20 else 'no'}\n" for k in range(40)
    )
    Path("people.csv").write_text("age,city,ill\n" + rows)
    told = ("--target", "ill", "--classes", "no,yes", "--bounds", "age=0..120")
    call(
        "train",
        "--data",
        "people.csv",
        *told,
        "--columns",
        "city:category:Rome,Oslo",
        *QUICK,
        *words,
    )
    return "runs/people-dpsgd"


def test_probabilities_are_those_of_the_formula() -> None:
    run = passed_on(small_run(), "people.csv")
    # other columns, another order, no labels; beyond the bounds, missing, not listed
    Path("new.csv").write_text("name,city,age\nAnn,Rome,30\nBob,Oslo,150\nCy,Bonn,\nDi,,NA\n")
    lines, said = predict(run, "new.csv")
    # by hand: 2(x - 0)/(120 - 0) - 1 cut to [-1, 1], 1 if missing; Rome, Oslo, another or none
    inputs = np.array([[-0.5, 0, 1, 0, 0], [1, 0, 0, 1, 0], [0, 1, 0, 0, 1], [0, 1, 0, 0, 1]])
    weights = load_file("given/model.safetensors")
    matrix = next(value for value in weights.values() if value.ndim == 2)
    bias = next(value for value in weights.values() if value.ndim == 1)
    scores = inputs @ matrix.T.astype(float) + bias
    expected = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    found = np.array([[float(line[f"p_{name}"]) for name in ("no", "yes")] for line in lines])
    assert np.abs(found - expected).max() < 1e-5
    assert expected.std(0).max() > 0.02  # the records differ
    assert [line["record"] for line in lines] == ["1", "2", "3", "4"]
    assert [line["predicted"] for line in lines] == [
        ("no", "yes")[place] for place in expected.argmax(1)
    ]
    assert said["records"] == sum(said["predicted"].values()) == 4
    assert said["remarks"] == [
        "column 'age': 1 of 4 values is beyond 0..120 and counted as the nearer bound",
        "column 'city': 1 of 4 values is not on the list of the training and counted as another",
        "not used: name",
    ]
    assert stat.S_IMODE(Path("told.csv").stat().st_mode) == 0o600


@pytest.mark.parametrize("stated", [True, False])
def test_a_mixed_table_is_read_as_it_was_in_training(here: Path, stated: bool) -> None:
    write_people(here / "all.csv", 700)
    head, *rows = (here / "all.csv").read_text().splitlines()
    (here / "people.csv").write_text("\n".join([head, *rows[:600]]) + "\n")
    (here / "held.csv").write_text("\n".join([head, *rows[600:]]) + "\n")
    words = STATED if stated else ("--target", "ill", "--columns", "note:text:64")
    call("train", "--data", "people.csv", "--test", "held.csv", *words, *QUICK, "--out", "run")
    assert (here / "run" / STATISTICS_FILE).exists() != stated
    expected = stated_accuracy("run")
    run = passed_on("run", "people.csv", "all.csv")
    lines, _ = predict(run, "held.csv")
    assert accuracy(lines, [row.rsplit(",")[-1] for row in rows[600:]]) == pytest.approx(expected)
    assert expected > 0.6
    if not stated:
        (here / run / STATISTICS_FILE).unlink()
        said = refuse("predict", run, "--data", "held.csv", "--out", "new.csv")
        assert STATISTICS_FILE in said


def test_texts_in_json_lines(here: Path) -> None:
    write_reviews(here / "reviews.jsonl")
    call("train", "--data", "reviews.jsonl", "--target", "label", *QUICK, "--out", "run")
    run = passed_on("run", "reviews.jsonl")
    new = [
        {"text": "great lovely superb great"},
        {"text": "dull awful boring dull"},
        {"text": None},
    ]
    Path("new.jsonl").write_text("\n".join(map(json.dumps, new)))
    lines, _ = predict(run, "new.jsonl")
    assert [line["predicted"] for line in lines[:2]] == ["pos", "neg"]
    assert float(lines[2]["p_pos"]) == pytest.approx(0.5, abs=1e-6)  # no word, no bias


def test_truth_in_json_lines(here: Path) -> None:
    records = [{"smokes": k % 2 == 0, "ill": k % 2 == 0} for k in range(60)]
    Path("people.jsonl").write_text("\n".join(map(json.dumps, records)))
    words = ("--target", "ill", "--classes", "false,true", *QUICK, "--epsilon", 20)
    call("train", "--data", "people.jsonl", *words, "--out", "run")
    told = json.loads(Path("run/run.json").read_text())["config"]["records"]
    assert told["columns"][0][:3] == [
        "smokes",
        "numeric (inferred)",
        "0..1 to [-1, 1], 1 if missing",
    ]
    run = passed_on("run", "people.jsonl")
    Path("new.jsonl").write_text('{"smokes": true}\n{"smokes": false}\n')
    lines, _ = predict(run, "new.jsonl")
    assert [line["predicted"] for line in lines] == ["true", "false"]


def test_pictures(here: Path) -> None:
    write_pictures(here / "pictures" / "train")
    shutil.copytree(here / "pictures" / "train", here / "pictures" / "test")
    words = ("--data", "pictures", "--classes", "across,down", "--features", "scattering")
    call("train", *words, "--side", 16, "--grey", "--epsilon", 8, *QUICK, "--out", "run")
    expected = stated_accuracy("run")
    shutil.move(here / "pictures" / "test", here / "new")
    run = passed_on("run", "pictures")
    lines, _ = predict(run, "new")
    assert [line["record"] for line in lines][:2] == ["across/0.png", "across/1.png"]
    labels = [line["record"].partition("/")[0] for line in lines]
    assert accuracy(lines, labels) == pytest.approx(expected)
    one, _ = predict(run, "new/down/7.png", "--overwrite")
    among = next(line for line in lines if line["record"] == "down/7.png")
    assert one == [{**among, "record": "7.png"}]
    (here / "new" / "down" / "7.png").write_text("text")
    assert "7.png: is no image" in refuse("predict", run, "--data", "new", "--out", "x.csv")
    (here / "empty").mkdir()
    assert "no images there" in refuse("predict", run, "--data", "empty", "--out", "x.csv")


@pytest.mark.parametrize("kind", ["rows", "bytes", "images"])
def test_arrays(here: Path, kind: str) -> None:
    chance = np.random.default_rng(0)
    labels = np.arange(200) % 2
    shape = (200, 8, 8) if kind == "images" else (200, 6)
    inputs = chance.normal(3, 1, shape) * (1 + 9 * labels.reshape(-1, *[1] * (len(shape) - 1)))
    words: tuple[object, ...] = ()
    if kind == "bytes":
        inputs = inputs.clip(0, 255).astype(np.uint8)
    elif kind == "images":
        words = ("--bounds", "-20..80", "--model", "linear", "--features", "none")
    names = {"x_train": inputs[:150], "y_train": labels[:150]}
    np.savez("all.npz", **names, x_test=inputs[150:], y_test=labels[150:])
    call("train", "--data", "all.npz", "--classes", "0,1", *words, *QUICK, "--out", "run")
    expected = stated_accuracy("run")
    assert (here / "run" / STATISTICS_FILE).exists() == (kind == "rows")
    run = passed_on("run", "all.npz")
    # as whole numbers that another program wrote: what is recorded decides, not their type
    np.savez("new.npz", x=inputs[150:].astype(np.int64) if kind == "bytes" else inputs[150:])
    lines, _ = predict(run, "new.npz")
    assert accuracy(lines, [str(label) for label in labels[150:]]) == pytest.approx(expected)
    np.save("new.npy", inputs[150:])
    assert predict(run, "new.npy", "--overwrite")[0] == lines
    np.save("bad.npy", inputs[150:, :5])
    assert "records have shape" in refuse("predict", run, "--data", "bad.npy", "--out", "x.csv")
    np.savez("bad.npz", a=inputs, b=inputs)
    assert "found a, b" in refuse("predict", run, "--data", "bad.npz", "--out", "x.csv")


def test_what_cannot_be_predicted_is_refused_and_nothing_written(here: Path) -> None:
    run = small_run()
    Path("new.csv").write_text("city,age\nRome,30\n")
    bad = {
        "gone.csv": (None, "there is no such file"),
        "empty.csv": ("", "is empty"),
        "head.csv": ("age,city\n", "holds no records"),
        "lacks.csv": (
            "age,ill\n3,no\n",
            "has no column city, which the model was trained with; it",
        ),
        "word.csv": ("age,city\n3,Rome\nSECRET,Oslo\n", "line 3, column 'age': is not a number"),
        "comma.csv": (
            'age;city\n3;Rome\n"4,75";Oslo\n',
            "line 3, column 'age': is not a number; it has",
        ),
        "nan.csv": ("age,city\nnan,Rome\n", "line 2, column 'age': is not finite"),
        "short.csv": ("age,city\n3\n", "line 2 has 1 fields"),
        "new.npz": ("", "must be a file that ends in .csv"),
        "new.xls": ("", "must be a file that ends in .csv"),
        "list.jsonl": ('["SECRET"]\n', "line 1 is not a JSON object"),
    }
    for name, (text, message) in bad.items():
        if text is not None:
            Path(name).write_text(text)
        said = refuse("predict", run, "--data", name, "--out", "x.csv")
        assert message in said, name
        assert "SECRET" not in said
        assert "4,75" not in said
    (here / "folder").mkdir()
    assert "must be a file" in refuse("predict", run, "--data", "folder", "--out", "x.csv")
    assert not Path("x.csv").exists()
    words = ("predict", run, "--data", "new.csv", "--out")
    assert "is the file of new records itself" in refuse(*words, "./new.csv", "--overwrite")
    assert "is a folder" in refuse(*words, "folder")
    Path("x.csv").write_text("mine")
    assert "say --overwrite" in refuse(*words, "x.csv")
    assert Path("x.csv").read_text() == "mine"
    assert "written: x.csv" in call(*words, "x.csv", "--overwrite")
    call(*words, "a/b.csv")
    assert Path("a/b.csv").exists()


def test_runs_that_cannot_predict_say_why(here: Path) -> None:
    call("train", "--steps", 1, "--batch", 100, "--device", "cpu", "--quiet", "--out", "digits")
    words = ("--data", "new.csv", "--out", "x.csv")
    assert "was trained on the data set digits" in refuse("predict", "digits", *words)
    assert "is no folder" in refuse("predict", "nowhere", *words)
    run = Path(small_run())
    Path("new.csv").write_text("city,age\nRome,30\n")
    kept = json.loads((run / "run.json").read_text())

    def changed(**values: Any) -> str:
        records = {**kept["config"]["records"], **values}
        records = {name: value for name, value in records.items() if value is not ...}
        content = {**kept, "config": {**kept["config"], "records": records}}
        (run / "run.json").write_text(json.dumps(content))
        return refuse("predict", run, *words)

    assert "is of an earlier version" in changed(encoding=...)
    for damage in ({"encoding": []}, {"classes": 3}, {"shape": ["a"]}, {"source": "film"}):
        assert "is damaged" in changed(**damage), damage
    assert "cannot be loaded" in changed(classes=["a", "b", "c"])
    content = {**kept, "config": {}}
    (run / "run.json").write_text(json.dumps(content))
    assert "was not made by reticent train" in refuse("predict", run, *words)
    (run / "run.json").write_text(json.dumps(kept))
    weights = load_file(run / "model.safetensors")
    save_file(
        {name: value * math.nan for name, value in weights.items()}, run / "model.safetensors"
    )
    refusal = refuse("predict", run, *words)
    assert f"'{run}/model.safetensors' is not the file that this run wrote" in refusal
    # of a run of an earlier version nobody can tell
    (run / "run.json").write_text(json.dumps({k: v for k, v in kept.items() if "sha256" not in k}))
    assert "its training diverged" in refuse("predict", run, *words)
    (run / "model.safetensors").unlink()
    assert "model.safetensors' does not exist" in refuse("predict", run, *words)
    assert not Path("x.csv").exists()


def test_the_card_of_a_model_says_how_to_use_it(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = small_run()
    card = (here / run / "MODEL_CARD.md").read_text().partition("## Use")[2]
    run = passed_on(run, "people.csv")
    monkeypatch.chdir(run)
    Path("new.csv").write_text("city,age\nRome,30\nOslo,90\n")
    command = card.partition("```bash\n")[2].partition("\n```")[0]
    call(*command.removeprefix("reticent ").split())
    with open("predictions.csv", newline="") as file:
        told = [line["predicted"] for line in csv.DictReader(file)]
    code = card.partition("```python\n")[2].partition("\n```")[0].splitlines()
    names: dict[str, Any] = {}
    exec("\n".join(code[:-2]), names)
    assert eval(code[-2], names) == told
    assert [("no", "yes")[k] for k in eval(code[-1], names).argmax(1).tolist()] == told
    printed = card.partition("```text\n")[2].partition("\n```")[0]
    plain = nn.Sequential(nn.Flatten(), nn.Linear(5, 2))
    assert printed == str(plain)
    plain.load_state_dict(load_tensors("model.safetensors"))
    inputs = torch.tensor([[-0.5, 0, 1, 0, 0], [0.5, 0, 0, 1, 0]])
    assert [("no", "yes")[k] for k in plain(inputs).argmax(1).tolist()] == told


def test_the_same_records_in_another_table_format(here: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    run = small_run()
    columns = {"city": ["Rome", "Oslo", None], "age": [30, None, 77.5]}
    parquet.write_table(arrow.table(columns), "new.parquet")
    Path("new.csv").write_text("age,city\n30,Rome\n,Oslo\n77.5,\n")
    Path("new.jsonl").write_text(
        '{"age": 30, "city": "Rome"}\n{"city": "Oslo"}\n{"age": 77.5, "city": null}\n'
    )
    found = [predict(run, f"new.{end}", "--overwrite")[0] for end in ("csv", "parquet", "jsonl")]
    assert found[0] == found[1] == found[2]
    assert len(found[0]) == 3
