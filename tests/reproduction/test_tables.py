"""The loader: what it makes of a table, and all that it refuses."""

from __future__ import annotations

from dataclasses import replace

import pytest

from reticent.errors import OptionError
from reticent.methods import DPIS
from reticent.reproduction import checking, tables
from reticent.reproduction.tables import load, names, parse

from .small import ATTACKS, SMALL


def small():
    return parse(SMALL, "small", "small.toml")


def test_entries_are_in_the_papers_order_and_complete():
    found = [(e.row, e.column, e.published, e.spread) for e in small().entries()]
    assert found == [
        ("DPSGD", 1, {"accuracy": 91.0}, {"accuracy": 0.5}),
        ("DPSGD", 3, {"accuracy": 96.0}, {"accuracy": None}),
        ("DPIS", 1, {"accuracy": None}, {}),
        ("DPIS", 3, {"accuracy": 92.0}, {}),
        ("SGD", None, {"accuracy": 99.0}, {}),
    ]


def test_layers_go_over_each_other():
    first, _, low, high, plain = (entry.settings for entry in small().entries())
    assert (first.data, first.model, first.batch, first.steps) == ("digits", "mlp", 256, 6)
    assert (first.epsilon, first.delta, first.clip, first.lr) == (1.0, 1e-5, 0.5, 2.0)
    assert isinstance(first.epsilon, float)  # 1 and 1.0 are one table
    assert (low.lr, high.lr) == (0.5, 1.0)
    assert low.method_options == {"k": 3.0, "divider": 0.5, "quantile": 0.9}
    assert high.method_options == {"k": 3.0, "divider": 0.5, "quantile": 1.1}
    # what all rows share is left out where a method has no use for it
    assert (plain.batch, plain.lr, plain.clip, plain.delta) == (64, 0.1, 1.0, 1e-5)
    method, _ = checking.build(low)
    assert isinstance(method, DPIS)


def test_a_flaw_of_a_row_may_be_none_on_one_data_set():
    start = "[rows.on.digits]\nsettings = { method_options = { divider = 0.5 } }"
    assert start in SMALL
    (before, _), (after, _) = (
        parse(text, "s", "s.toml").entries(rows=["DPIS"])
        for text in (SMALL, SMALL.replace(start, start.replace("]\n", "]\nsound = true\n")))
    )
    assert (before.sound, before.why) == (False, "sums cost more")
    assert (after.sound, after.why) == (True, None)
    on_none = SMALL.replace("each = { noise", "sound = true\neach = { noise")
    with pytest.raises(OptionError, match=r"on.sound = True: .* for rows with sound = false"):
        parse(on_none, "s", "s.toml")


OTHER = '[data.other]\ntitle = "Other"\nlike = "digits"\nbatch = 128\n\n[[rows]]'


def test_a_data_set_may_be_like_another():
    # the last row has numbers of its own
    text = SMALL.replace("[[rows]]", OTHER, 1) + "[rows.on.other]\npublished = 50.0\n"
    table = parse(text, "s", "s.toml")
    there = {(e.row, e.column): e for e in table.entries(data=["digits"])}
    for entry in table.entries(data=["other"]):
        like = there[entry.row, entry.column]
        assert entry.settings.data == "digits"
        if entry.row == "SGD":
            assert entry.published == {"accuracy": 50.0}
            continue
        assert entry.published == like.published
        assert entry.spread == like.spread
        batch = 128 if like.settings.batch == 256 else like.settings.batch
        assert entry.settings == replace(like.settings, batch=batch)
    assert len(table.entries(data=["other"])) == len(there)
    for wrong in ("mnist", "other"):
        with pytest.raises(OptionError, match=f"like = '{wrong}': .* a data set further up"):
            parse(text.replace('like = "digits"', f'like = "{wrong}"'), "s", "s.toml")


def test_a_data_set_like_another_that_is_not_here_is_not_here_either():
    start = 'title = "Digits"\nmodel'
    assert start in SMALL
    text = SMALL.replace(start, start.replace("model", 'missing = "on paper"\nmodel'))
    found = parse(text.replace("[[rows]]", OTHER, 1), "s", "s.toml").entries()
    assert [(e.data, e.missing) for e in found] == [
        (name, "on paper") for name in ("digits", "other") for _ in range(5)
    ]


def test_a_data_set_known_by_name_keeps_its_records_whatever_it_is_like():
    text = SMALL.replace("[[rows]]", OTHER.replace("data.other", "data.mnist"), 1)
    found = parse(text, "s", "s.toml").entries(data=["mnist"])
    assert {(e.settings.data, e.settings.model) for e in found} == {("mnist", "mlp")}


def test_the_column_goes_over_everything():
    over = SMALL.replace("each = { lr = [0.5, 1],", "each = { epsilon = [7, 8],")
    found = parse(over, "small", "small.toml").entries(rows=["DPIS"])
    assert [entry.settings.epsilon for entry in found] == [1.0, 3.0]


def test_a_column_may_be_left_as_it_is():
    over = SMALL.replace(
        "each = { noise = [6.0, 3.0] }",
        "each = { noise = [6.0, nan], epochs = [nan, 2.0], lr = [nan, nan] }",
    )
    found = [entry.settings for entry in parse(over, "s", "s.toml").entries(rows=["DPSGD"])]
    # steps = 6 are those of the data set, and give way to epochs
    assert [(one.noise, one.steps, one.epochs) for one in found] == [
        (6.0, 6, None),
        (None, None, 2.0),
    ]
    assert [one.lr for one in found] == [2.0, 2.0]


def test_steps_and_epochs_speak_for_each_other():
    over = SMALL.replace('settings = { method = "sgd",', 'settings = { method = "sgd", epochs = 2,')
    plain = parse(over, "small", "small.toml").entries(rows=["SGD"])[0].settings
    assert (plain.steps, plain.epochs) == (None, 2.0)


def test_selection():
    table = small()
    found = table.entries(columns=[3], rows=["DPSGD", "SGD"], data=["digits"], variants=["sound"])
    assert [(entry.row, entry.column) for entry in found] == [("DPSGD", 3), ("SGD", None)]
    for wrong in (
        {"columns": [2]},
        {"rows": ["X"]},
        {"data": ["mnist"]},
        {"variants": ["repaired"]},
    ):
        with pytest.raises(OptionError, match="is not in this table"):
            table.entries(**wrong)


def test_several_measures_and_one_column():
    table = parse(ATTACKS, "attacks", "attacks.toml")
    entry = table.entries()[0]
    assert entry.published == {"accuracy": 90.0, "shadow.accuracy": 0.6}
    assert entry.column is None
    assert table.attacks == ("population", "shadow")
    assert (table.design, table.shadows, table.audited) == ("split", 2, 100)
    low = ATTACKS.replace("audited = 100", "").replace('"best.auc"', '"population.tpr@0.0001"')
    assert parse(low, "attacks", "attacks.toml").audited == 20_000


def test_columns_may_be_mere_names():
    text = SMALL.replace('axis = "epsilon"\n', "").replace(
        "columns = [1, 3]", 'columns = ["a", "b"]'
    )
    found = parse(text, "small", "small.toml").entries(columns=["b"], rows=["DPIS"])
    assert [(entry.column, entry.settings.lr) for entry in found] == [("b", 1.0)]


def test_a_computed_table_has_options():
    text = """
    paper = "P"
    name = "F"
    title = "T"
    kind = "noise"
    axis = "options.share"
    columns = [0.1, 0.2]
    measures = ["first", "last"]
    [data.shape]
    data = "digits"
    [[rows]]
    name = "R"
    options = { a = 1, inner = { b = 2 } }
    [rows.on.shape]
    options = { inner = { c = 3 } }
    each = { "options.d" = [4, 5] }
    published = { first = [1.0, 2.0] }
    """
    first, second = parse(text, "f", "f.toml").entries()
    assert first.options == {"a": 1, "inner": {"b": 2, "c": 3}, "d": 4, "share": 0.1}
    assert (second.options["d"], second.options["share"]) == (5, 0.2)
    assert (second.settings.data, second.published) == ("digits", {"first": 2.0})


# what is replaced, by what, and what the error names
BROKEN = [
    ('paper = "Nobody 2026"\n', "", "paper = None"),
    ('title = "Digits"\nruns', "title = 3\nruns", "title = 3: in small.toml: must be text"),
    ("runs = 5", "runs = 0", "runs = 0"),
    ("runs = 5", 'kind = "magic"', "kind = 'magic'"),
    ("runs = 5", "speed = 5", "speed = 5: in small.toml: no such key"),
    ("runs = 5", 'design = "thirds"', "design = 'thirds'"),
    ("runs = 5", "shadows = 3", "shadows = 3"),
    ("runs = 5", 'percent = ["accuracy"]', "percent = 'accuracy'"),
    ("runs = 5", 'attacks = ["guess"]', "attacks = 'guess'"),
    ('axis = "epsilon"', 'axis = "temperature"', "axis = 'temperature'"),
    ('axis = "epsilon"', 'axis = "method_options"', "axis = 'method_options'"),
    ('axis = "epsilon"', 'axis = "options.share"', "axis = 'options.share'"),
    ("columns = [1, 3]", 'columns = ["a", "b"]', "epsilon = 'a': in small.toml"),
    ("columns = [1, 3]", "columns = [1, 1]", "columns = [1, 1]"),
    ("columns = [1, 3]", "columns = [0, 3]", "on digits, column 0: epsilon = 0.0: must be greater"),
    ("delta = 1e-5", "delta = 1.5", "in row 'DPSGD' on digits, column 1: delta = 1.5: must be"),
    ("steps = 6", "epochs = -1", "epochs = -1.0: must be greater than 0"),
    ("lr = 2.0", 'lr = 2.0\noptimizer = "sdg"', "optimizer = 'sdg': must be one of"),
    ("lr = 2.0", 'lr = 2.0\nschedule = "cosinus"', "schedule = 'cosinus': must be one of"),
    ("runs = 5", "rusn = 5", "did you mean runs?"),
    ("runs = 5", 'desgin = "split"', "did you mean design?"),
    ("columns = [1, 3]", "columns = [1, [3]]", "columns = [3]"),
    ("columns = [1, 3]\n", "", "axis = 'epsilon'"),
    ('["accuracy"]', "[]", "measures = []"),
    ('["accuracy"]', '["precision"]', "measures = 'precision'"),
    ('["accuracy"]', '["shadow.speed"]', "measures = 'shadow.speed'"),
    ('["accuracy"]', '["guess.auc"]', "measures = 'guess.auc'"),
    ('["accuracy"]', '["best.auc"]', "attacks = []"),
    ('["Made up."]', "[1]", "notes = 1"),
    ("clip = 0.5", "clipp = 0.5", "clipp = 0.5: in small.toml, [settings]"),
    ("clip = 0.5", 'clip = "a"', "clip = 'a': in small.toml, [settings]"),
    ("clip = 0.5", "seed = 1", "settings.seed = 1"),
    ("clip = 0.5", 'device = "cpu"', "settings.device = 'cpu'"),
    ("[data.digits]", "[data.letters]", "data.letters = 'letters'"),
    ("batch = 256", "batch = 2.5", "batch = 2.5: in small.toml, [data.digits]"),
    ("batch = 256", "records = 9", "data.digits.records = 9"),
    ("batch = 256", "missing = 1", "data.digits.missing = 1"),
    ('why = "sums cost more"\n', "", "row 'DPIS'.why = None"),
    ("sound = false\n", "", "row 'DPIS'.why = 'sums cost more'"),
    ('method = "dpis"', 'method = "magic"', "'magic'"),
    ("k = 3.0", "kk = 3.0", "kk = 3.0"),
    ('model = "mlp"', 'model = "gpt"', "model = 'gpt'"),
    ('model = "mlp"', 'model = "mlp"\nfeatures = "x"', "features = 'x'"),
    ("k = 3.0", "k = -3.0", "k = -3.0"),
    ("each = { lr = [0.5, 1]", "each = { lr = [0.5]", "row 'DPIS'.on.digits.each.lr = [0.5]"),
    ("each = { lr = [0.5, 1]", "each = { lr = [0.5, true]", "lr = True"),
    ("each = { lr = [0.5, 1]", "each = { rate = [0.5, 1]", "row 'DPIS'.on.digits.each = 'rate'"),
    ("published = [nan, 92.0]", "published = [92.0]", "has 1 numbers for 2 columns"),
    ("published = [nan, 92.0]", "published = 92.0", "one for each column"),
    ("published = [nan, 92.0]", 'published = [nan, "a"]', "published = 'a'"),
    ("published = [nan, 92.0]", "published = { loss = [1, 2] }", "published = 'loss'"),
    ("published = [nan, 92.0]", "options = { a = 1 }", "options = {'a': 1}"),
    ("published = 99.0", "published = [99.0, 99.0]", "must be a number"),
    ("published = 99.0", "each = { lr = [1, 2] }", "row 'SGD'.on.digits.each = 'lr'"),
    ("published = 99.0", "printed = 99.0", "row 'SGD'.on.digits.printed = 99.0"),
    ("single = true", "single = 1", "row 'SGD'.single = 1"),
    ("single = true\n", "", "must be a list of 2 numbers"),
    ("single = true", 'single = true\nvariants = ["published"]', "is for the method dpsur only"),
    ("single = true", 'variants = ["best"]', "row 'SGD'.variants = 'best'"),
    ("lr = 0.1 }", "lr = 0.1, delta = 1e-5 }", "delta = 1e-05"),
    ("lr = 0.1 }", "lr = 0.1, epochs = 1, steps = 1 }", "means nothing beside epochs"),
    ('name = "SGD"', 'name = "DPIS"', "must have different names"),
    ("[rows.on.digits]\npublished = 99.0", "", "row 'SGD'.on = {}"),
    ("[rows.on.digits]\npublished = 99.0", "[rows.on.mnist]\npublished = 9", "row 'SGD'.on.mnist"),
    ("columns = [1, 3]", "columns = [1, 3", "is not TOML"),
]


@pytest.mark.parametrize(("old", "new", "says"), BROKEN)
def test_what_cannot_be_meant_is_refused_by_name(old, new, says):
    assert SMALL.count(old) >= 1
    text = SMALL.replace(old, new)
    with pytest.raises(OptionError) as caught:
        parse(text, "small", "small.toml")
    assert says in str(caught.value)
    assert "small.toml" in str(caught.value)


def test_a_row_without_epsilon_cannot_have_columns_of_it():
    text = SMALL.replace("single = true\n", "").replace("published = 99.0", "")
    with pytest.raises(OptionError, match=r"epsilon = 1: in small.toml.*single = true"):
        parse(text, "small", "small.toml")


def test_measures_must_be_named_where_there_are_several():
    with pytest.raises(OptionError, match="must say of what"):
        parse(
            ATTACKS.replace("published = { accuracy = 90.0, ", "published = 90.0\nspread = { "),
            "attacks",
            "attacks.toml",
        )


def test_a_table_of_ones_own(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(SMALL)
    assert load(path) == load(str(path))
    assert load(path).id == "mine"
    with pytest.raises(OptionError, match="cannot be read"):
        load(tmp_path / "other.toml")
    with pytest.raises(OptionError, match="table = 'dpsur/table9'"):
        load("dpsur/table9")


def test_names_are_in_order():
    found = names()
    assert found.index("pdsgd/table9") < found.index("pdsgd/table10") < found.index("pdsgd/figure1")
    assert len(set(found)) == len(found) >= 30


@pytest.mark.parametrize("name", names())
def test_every_shipped_table_can_be_built(name):
    table = load(name)
    assert table.id == name
    seen = set()
    for entry in table.entries():
        settings = entry.settings
        what = (settings.data, settings.features, settings.model, settings.activation)
        if table.kind == tables.TRAINING and (*what, entry.row) not in seen:
            seen.add((*what, entry.row))
            checking.build(settings)
    assert table.entries() != []
