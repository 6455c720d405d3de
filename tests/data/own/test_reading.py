"""From files to splits: what is learned from the records is noted, and nothing else is learned."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from reticent.data.own import from_columns, from_file, is_own
from reticent.data.own.labels import LEARNED
from reticent.data.own.reading import BY_NUMBER, FIELDS, LEAST_RECORDS
from reticent.data.own.splitting import held_out
from reticent.errors import DataError, OptionError

STATED = {
    "target": "ill",
    "classes": "no,yes",
    "columns": ["city:category", "note:text:64"],
    "bounds": ["age=0..120", "income=0..1000000"],
}


def test_a_mixed_table(people):
    with pytest.warns(UserWarning, match="learned from the records"):
        splits = from_file(people, target="ill")
    assert splits.info.classes == ("no", "yes")
    assert splits.info.n_train + splits.info.n_test == 300
    width = 2 + 2 + 65 + 4096
    assert splits.train[0].shape == (splits.info.n_train, width)
    assert splits.train[1].dtype == torch.int64
    assert splits.private_columns == (0, 2)
    assert splits.missing_columns == (1, 3)
    assert (splits.form, splits.blocks) == ("table", 4)
    assert LEARNED in splits.notes
    assert any(
        "age, income, city, note was inferred" in n.replace("hold ", "") for n in splits.notes
    )


@pytest.mark.filterwarnings("error")
def test_what_is_stated_needs_no_note(people):
    splits = from_file(people, **STATED)
    assert splits.notes == (BY_NUMBER,)
    assert splits.warnings == ()
    assert splits.private_columns == ()
    assert float(splits.train[0].abs().max()) <= 1


def test_reading_twice_gives_the_same(people):
    one, other = (from_file(people, **STATED) for _ in range(2))
    for a, b in zip((*one.train, *one.test), (*other.train, *other.test), strict=True):
        assert torch.equal(a, b)
    moved = from_file(people, **STATED, split_seed=1)
    assert moved.info.n_train != one.info.n_train or not torch.equal(moved.train[0], one.train[0])


def test_training_and_test_records_are_disjoint_and_complete():
    numbers = list(range(500))
    labels = ["a", "b"] * 250
    splits = from_columns(
        {"x": numbers, "y": labels}, target="y", classes="a,b", bounds="x=0..1000", test_share=0.3
    )
    back = [
        torch.round((part[:, 0] + 1) * 500).long().tolist()
        for part, _ in (splits.train, splits.test)
    ]
    assert not set(back[0]) & set(back[1])
    assert sorted(back[0] + back[1]) == numbers
    for part, (_, numbered) in zip(back, (splits.train, splits.test), strict=True):
        assert [number % 2 for number in part] == numbered.tolist()


def test_the_split_depends_on_numbers_and_seed_alone():
    chosen = held_out(100_000, 0.2, seed=5)
    # binomial: five standard deviations each way, false alarm below 1e-6
    assert abs(chosen.mean() - 0.2) < 5 * np.sqrt(0.16 / 100_000)
    assert np.array_equal(chosen[:1000], held_out(1000, 0.2, seed=5))
    assert not np.array_equal(chosen[:1000], held_out(1000, 0.2, seed=6))
    # another stream of the same length would agree in 68 % of the coins
    again = held_out(100_000, 0.2, seed=6)
    assert abs((chosen == again).mean() - 0.68) < 5 * np.sqrt(0.68 * 0.32 / 100_000)


def test_one_more_record_at_the_end_moves_no_other(people):
    before = from_file(people, **STATED)
    with people.open("a") as file:
        file.write("50,20000,Oslo,was here once more,no\n")
    after = from_file(people, **STATED)
    counts = [(s.info.n_train, s.info.n_test) for s in (before, after)]
    assert sum(counts[1]) == sum(counts[0]) + 1
    assert torch.equal(after.train[0][: counts[0][0]], before.train[0])
    assert torch.equal(after.test[0][: counts[0][1]], before.test[0])


def test_a_test_file_is_read_by_the_training_files_plan(people, csv_file):
    other = csv_file(
        "income,ill,age,note,city\n1000000,yes,60,coughs,Nowhere\n0,no,0,,\n", "test.csv"
    )
    splits = from_file(people, **STATED, test=other)
    assert splits.info.n_train == 300
    assert splits.test[1].tolist() == [1, 0]
    assert splits.test[0][:, 0].tolist() == [0, -1]  # age, though it is the third column there
    assert splits.test[0][:, 2].tolist() == [1, -1]
    assert BY_NUMBER not in splits.notes


def test_a_test_file_without_a_column_is_refused(people, csv_file):
    other = csv_file("ill,age\nyes,60\n", "test.csv")
    says = r"test = '.*test\.csv': has no column income, city, note, which .* its columns: age\."
    with pytest.raises(OptionError, match=says):
        from_file(people, **STATED, test=other)
    with pytest.raises(OptionError, match=r"target = 'il': must be a column of .*mean ill\?"):
        from_file(people, **{**STATED, "target": "il"})


def test_labels_keep_the_order_of_their_list():
    values = {"x": [1, 2, 3] * 10, "y": [10, 2, 1] * 10}
    with pytest.warns(UserWarning, match="list of classes"):
        assert from_columns(values, target="y").info.classes == ("1", "2", "10")
    stated = from_columns(values, target="y", classes=["10", "1", "2", "7"], bounds="0..3")
    assert stated.info.classes == ("10", "1", "2", "7")
    x = torch.round((torch.cat([stated.train[0], stated.test[0]])[:, 0] + 1) * 1.5).long()
    y = torch.cat([stated.train[1], stated.test[1]])
    assert {(int(a), int(b)) for a, b in zip(x, y, strict=True)} == {(1, 0), (2, 2), (3, 1)}


def test_classes_from_a_file(people, csv_file):
    names = csv_file("yes\n\nno\n", "classes.txt")
    splits = from_file(people, **{**STATED, "classes": f"@{names}"})
    assert splits.info.classes == ("yes", "no")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"target": "sick"}, "target = 'sick': must be a column of"),
        ({"target": None}, "target = None: must be a column of"),
        ({"target": "sick"}, "age, income, city, note, ill"),
        ({"classes": "no,maybe"}, "line 2, column 'ill'"),
        ({"classes": "no"}, "two different labels or more"),
        ({"classes": "@nowhere"}, "cannot be read"),
        ({"test_share": 0.001}, "test_share = 0.001"),
        ({"test_share": 0.5, "test": "x.csv"}, "leave one out"),
        ({"test": "nowhere.csv"}, "nowhere.csv: there is no such file"),
        ({"split_seed": -1}, "split_seed = -1"),
        ({"side": 16}, "side = 16: means nothing for tables"),
        ({"grey": True}, "grey = True: means nothing for tables"),
        ({"colums": "x"}, "colums = 'x': is no option"),
        ({"columns": 3}, "must be a list of words"),
    ],
)
def test_what_cannot_work_is_refused(people, change, message):
    first = people.read_text().splitlines()[1]
    people.write_text(people.read_text().replace(first, "50,1,Oslo,text,yes", 1))
    with pytest.raises((OptionError, DataError)) as caught:
        from_file(people, **{**STATED, **change})
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (["1,a", "2,b", "3,a"], f"holds 3 record(s); .* fewer than {LEAST_RECORDS}"),
        ([], "holds no records"),
        (["1,a"] * 20, "all records have the same label"),
        (["1,a"] * 9 + ["2,b", "3,"], "line 12, column 'y': the label is missing"),
        (["1,a"] * 9 + ["nan,b"], "line 11, column 'x': is not finite"),
        (["1,a"] * 9 + ["-inf,b"], "line 11, column 'x': is not finite"),
        ([f"1,{k / 7}" for k in range(30)], "the target has 30 different values in 30 records"),
    ],
)
def test_records_that_cannot_be_used(csv_file, rows, message):
    path = csv_file("\n".join(["x,y", *rows]) + "\n")
    with pytest.raises(DataError, match=message.replace("(s)", r"\(s\)")):
        from_file(path, target="y")


def test_a_label_may_be_called_none(csv_file):
    path = csv_file("x,y\n" + "1,none\n2,NA\n" * 10)
    with pytest.warns(UserWarning, match="list of classes"):
        assert from_file(path, target="y").info.classes == ("NA", "none")


def test_no_column_but_the_target(csv_file):
    with pytest.raises(DataError, match="no column besides the target"):
        from_file(csv_file("y\n" + "a\nb\n" * 10), target="y")


def test_paths_and_names_are_told_apart(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    assert is_own("mine")
    assert is_own("a/b")
    assert is_own("x.PARQUET")
    assert not is_own("digits")
    assert not is_own("no-such-name")
    (tmp_path / "notes.docx").write_text("x")
    with pytest.raises(OptionError, match=r"must be a folder or end in one of \.csv"):
        from_file(tmp_path / "notes.docx", target="y")


def test_the_description_names_every_column(people):
    told = from_file(people, **STATED).describe()
    for line in ("age     numeric", "city    category", "note    text", "0..120 to [-1, 1]"):
        assert line in told
    assert "2 classes: no, yes" in told


def test_private_statistics_touch_their_columns_alone():
    from reticent.features.standardising import ChannelStatistics

    values = {"a": ["9", "", "99"] * 10, "b": ["1", "2", "3"] * 10, "y": ["u", "v", "u"] * 10}
    splits = from_columns(values, target="y", classes="u,v", columns="a:numeric", bounds="b=0..4")
    assert splits.private_columns == (0,)
    statistics = ChannelStatistics(
        torch.tensor([0.25], dtype=torch.float64), torch.tensor([0.05], dtype=torch.float64), {}
    )
    after = splits.standardised(statistics)
    for (before, _), (found, _) in ((splits.train, after.train), (splits.test, after.test)):
        assert torch.equal(found[:, 1:], before[:, 1:])
        # log10(10)/6 and log10(100)/6; a missing number is at the mean
        expected = {1: (1 / 6 - 0.25) / 0.05, 2: (2 / 6 - 0.25) / 0.05}
        for row, was in zip(found, before, strict=True):
            there = expected.get(round(float(was[0]) * 6), 0.0)
            assert float(row[0]) == pytest.approx(there, abs=1e-5)
    far = ChannelStatistics(statistics.mean, statistics.deviation / 100, {})
    assert float(splits.standardised(far).train[0][:, 0].abs().max()) == 3


def test_training_records_are_not_taken_for_held_out_ones(tmp_path):
    path = tmp_path / "people.csv"
    path.write_text("age,ill\n" + "20,no\n60,yes\n" * 50)
    (tmp_path / "same.csv").symlink_to(path)
    for name in ("people.csv", "same.csv"):
        with pytest.raises(OptionError, match="is the training file itself"):
            from_file(path, target="ill", classes="no,yes", test=str(tmp_path / name))


@pytest.mark.parametrize("classes", ["false,true", "False,True"])
def test_truth_values_are_labels_as_json_or_python_writes_them(classes):
    values = {"x": [1, 2] * 20, "y": [True, False] * 20}
    splits = from_columns(values, target="y", classes=classes, bounds="0..2")
    assert splits.info.classes == tuple(classes.split(","))
    inputs, labels = splits.train
    assert (labels == (inputs[:, 0] == 0)).all()  # x = 1, in the middle, is where y is true
    with pytest.warns(UserWarning, match="learned from the records"):
        learned = from_columns(values, target="y", bounds="0..2")
    assert learned.info.classes == ("false", "true")


@pytest.mark.parametrize(
    ("columns", "noted"),
    [("*:numeric:0..9", True), ("a:numeric:0..9", False), (["a:numeric:0..9", "*:ignore"], False)],
)
def test_fields_that_only_the_first_record_names_are_noted(tmp_path, columns, noted):
    """A CSV file has a header; the fields of JSON lines are a record's."""
    rows = [{"a": k % 10, "y": "no" if k % 3 else "yes"} for k in range(30)]
    path = tmp_path / "x.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    options = {"target": "y", "classes": "no,yes", "columns": columns}
    assert (FIELDS.format(names="a") in from_file(path, **options).notes) == noted
    (tmp_path / "x.csv").write_text("a,y\n" + "".join(f"{r['a']},{r['y']}\n" for r in rows))
    assert FIELDS.format(names="a") not in from_file(tmp_path / "x.csv", **options).notes
