"""What a column is: stated, or inferred by looking."""

from __future__ import annotations

import pytest

from reticent.data.own.columns import plan_columns
from reticent.data.own.tables import table_of
from reticent.errors import DataError, OptionError

CELLS = {
    "age": ["41", "", "7.5", "NA", "1e2"] * 8,
    "sex": ["f", "m", "?", "f", "m"] * 8,
    "said": ["it hurts in my left foot", "nothing at all to say", ""] * 13 + ["I do not know"],
    "void": ["", "NA", "?", "null"] * 10,
}


def plan(columns=(), bounds=(), **cells):
    return {c.name: c for c in plan_columns(table_of(cells or CELLS), columns, bounds)}


def test_kinds_are_inferred_from_cells():
    found = plan()
    assert {name: column.kind for name, column in found.items()} == {
        "age": "numeric",
        "sex": "category",
        "said": "text",
        "void": "ignore",
    }
    assert all(column.inferred for column in found.values())
    assert [column.width for column in found.values()] == [2, 65, 4096, 0]
    assert [column.private for column in found.values()] == [True, False, False, False]


def test_what_is_stated_is_not_inferred():
    found = plan(
        ["age:numeric:0..120", "sex:category:f,m", "said:text:128", "void:ignore"],
    )
    assert not any(column.inferred for column in found.values())
    assert found["age"].bounds == (0, 120)
    assert found["sex"].values == ("f", "m")
    assert [column.width for column in found.values()] == [2, 3, 128, 0]
    assert all(column.cost == "free" for column in found.values())


def test_a_star_is_for_all_others():
    found = plan(["*:ignore", "sex:category:16"])
    assert [column.kind for column in found.values()] == ["ignore", "category", "ignore", "ignore"]
    assert found["sex"].buckets == 16


def test_bounds_for_one_column_or_for_all():
    assert plan(bounds=["age=-5..5"])["age"].bounds == (-5, 5)
    assert not plan(bounds=["age=-5..5"])["age"].inferred  # only numbers have bounds
    found = plan(bounds=["0..1", "b=0..9"], a=[1, 2] * 9, b=[1, 2] * 9, c=["x", "y"] * 9)
    assert found["a"].bounds == (0, 1)
    assert found["b"].bounds == (0, 9)
    assert found["c"].bounds is None


def test_bounds_whose_distance_overflows_are_refused():
    with pytest.raises(OptionError, match="LOW below HIGH"):
        plan(bounds=["age=-1e308..1e308"])


def test_bounds_of_several_columns_in_one_word():
    cells = {"a": [1, 2] * 9, "b": [1, 2] * 9, "x,y=z": [1, 2] * 9}
    found = plan(bounds=["a=0..1,b=-2..9", "x,y=z=0..3"], **cells)
    assert [found[name].bounds for name in cells] == [(0, 1), (-2, 9), (0, 3)]
    with pytest.raises(OptionError, match=r"bounds = .d=0\.\.9.: must name a column of a, b"):
        plan(bounds=["a=0..1,d=0..9"], **cells)


def test_a_name_may_hold_colons_and_equals_signs():
    cells = {"a": [1, 2] * 9, "a:text": [1, 2] * 9, "x=y": [1, 2] * 9}
    found = plan(["a:text:ignore"], ["x=y=0..4"], **cells)
    assert found["a:text"].kind == "ignore"
    assert found["a"].kind == "numeric"
    assert found["x=y"].bounds == (0, 4)


def test_truth_values_are_numbers_from_0_to_1():
    column = plan(a=[True, False, None] * 9)["a"]
    assert (column.kind, column.bounds, column.inferred) == ("numeric", (0.0, 1.0), True)
    assert plan(["a:category:true,false"], a=[True, False] * 9)["a"].values == ("true", "false")
    assert plan(a=[True, 2] * 9)["a"].kind == "category"


@pytest.mark.parametrize("cells", [["7,25", "2"], ["1,234.5", "0,5", ""], ["1e3", "-,5"]])
def test_commas_in_numbers_are_named_not_guessed(cells):
    with pytest.raises(
        DataError, match=r"record \d+, column 'a': .*write 3\.14, not 3,14"
    ) as caught:
        plan(a=cells * 9)
    assert "--columns a:category" in str(caught.value)
    assert not any(cell in str(caught.value) for cell in cells if "," in cell)
    assert plan(["a:category"], a=cells * 9)["a"].kind == "category"


def test_words_with_commas_are_no_numbers():
    assert plan(a=["Bonn, Rome", "3,14"] * 9)["a"].kind == "category"


def test_long_lists_of_columns_are_cut():
    many = {f"column{k}": [1, 2] * 9 for k in range(500)}
    for options in (["b:numeric"], []):
        with pytest.raises(OptionError, match="column7 and 492 more") as caught:
            plan(options, [] if options else ["b=0..1"], **many)
        assert len(str(caught.value)) < 300


@pytest.mark.parametrize("count", [40, 2000])
def test_a_category_with_too_many_values_is_refused(count):
    cells = {"id": [f"p{number}" for number in range(count)], "x": [1] * count}
    with pytest.raises(DataError, match=r"'id' has .* different values.*--columns id:ignore"):
        plan(**cells)
    assert plan(["id:category:32"], **cells)["id"].buckets == 32


@pytest.mark.parametrize(
    ("columns", "bounds", "message"),
    [
        (["agee:numeric"], (), "must be NAME:KIND"),
        (["age:number"], (), "must be one of numeric, category, text, sentences, ignore"),
        (["age:numeric:5"], (), "LOW..HIGH"),
        (["age:numeric:9..1"], (), "LOW below HIGH"),
        (["age:numeric:0..inf"], (), "finite"),
        (["sex:category:f,f"], (), "has one twice"),
        (
            ["sex:category:1"],
            (),
            "columns = 'sex:category:1': its number of buckets must lie in [2",
        ),
        (["said:text:0"], (), "columns = 'said:text:0': its number of buckets must lie in [2"),
        (["said:text:9999999"], (), "must lie in [2, 1,048,576]"),
        (["sex:categry"], (), "columns = 'sex:categry': the kind of 'sex' must be one of numeric"),
        (["sex:categry"], (), "did you mean category?"),
        (["agee:numeric"], (), "did you mean age?"),
        ((), ["agee=0..1"], "did you mean age?"),
        (["said:text:many"], (), "takes no option"),
        (["age:ignore", "age:numeric"], (), "there twice"),
        ((), ["agee=0..1"], "must name a column of age"),
        ((), ["age=0-1"], "LOW..HIGH"),
        (["age:numeric:0..1"], ["age=0..2"], "its own options"),
        (["age:ignore"], ["age=0..2"], "its own options"),
    ],
)
def test_what_cannot_be_meant_is_refused(columns, bounds, message):
    with pytest.raises(OptionError) as caught:
        plan(columns, bounds)
    assert message in str(caught.value)


def test_something_must_be_left_to_learn_from():
    with pytest.raises(DataError, match="all are ignored"):
        plan(["*:ignore"])
