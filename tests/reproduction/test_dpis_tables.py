"""DPIS's tables: a second transcription, what the text says about them, and their settings."""

from __future__ import annotations

import pytest

from reticent import models
from reticent.cli.building import build_method
from reticent.data.catalog import lookup
from reticent.methods import DPIS, NoiseDecay
from reticent.reproduction.tables import Entry, Table, load

from .papers import printed_entries

DATA = ("mnist", "fashion-mnist", "cifar10", "imdb")
SHAPES = {"scattering": {"mnist": (81, 7, 7), "fashion-mnist": (81, 7, 7), "cifar10": (243, 8, 8)}}
TABLES = ("table3", "table4", "table5", "table6", "table7", "table8")

# Typed from the paper once more, by line, without its decimal points.
PRINTED = {
    "table3": """
        mnist DPIS 968 977 986 988 989 / DP-SGD-HF 961 972 983 984 985 / DP-SGD-TS 960 968 977 981
        983 / DP-SGD-Decay 962 970 978 982 983 / DP-SGD 931 949 961 968 972 / non-DP 991
        fashion-mnist DPIS 846 866 883 888 894 / DP-SGD-HF 839 860 878 883 887 / DP-SGD-TS 810 830
        850 863 868 / DP-SGD-Decay 808 831 851 864 868 / DP-SGD 784 808 823 841 845 / non-DP 909
        cifar10 DPIS 551 622 679 697 706 / DP-SGD-HF 543 611 674 692 702 / DP-SGD-TS 444 510 572 607
        630 / DP-SGD-Decay 441 507 566 607 631 / DP-SGD 431 483 547 589 604 / non-DP 710
        imdb DPIS 591 621 659 683 702 / DP-SGD-TS 575 603 628 652 665 / DP-SGD-Decay 568 604 636 663
        676 / DP-SGD 564 603 635 664 674 / non-DP 795""",
    "table4": """
        mnist DPIS+AC 967 976 985 987 / DPIS\\AC 968 977 986 988
        fashion-mnist DPIS+AC 846 865 882 887 / DPIS\\AC 846 866 883 888
        cifar10 DPIS+AC 554 624 677 693 / DPIS\\AC 551 622 679 697
        imdb DPIS+AC 591 622 659 683 / DPIS\\AC 582 617 650 676""",
    "table5": """
        mnist DPIS 976 976 977 976 fashion-mnist DPIS 866 865 867 868
        cifar10 DPIS 620 621 624 619 imdb DPIS 621 618 621 621""",
    "table6": """
        mnist DPIS 977 977 977 977 fashion-mnist DPIS 867 867 868 868
        cifar10 DPIS 623 622 624 624 imdb DPIS 621 622 623 623""",
    "table7": """
        mnist DPIS+AC 975 976 974 973 fashion-mnist DPIS+AC 864 865 864 864
        cifar10 DPIS+AC 619 624 621 620 imdb DPIS+AC 620 622 621 620""",
    "table8": """
        mnist DPIS+AC 973 974 976 974 973 fashion-mnist DPIS+AC 863 864 865 864 863
        cifar10 DPIS+AC 618 620 624 620 618 imdb DPIS+AC 611 617 622 617 611""",
}


def printed(table: str) -> dict[tuple[str, str], list[float]]:
    found: dict[tuple[str, str], list[float]] = {}
    data, row = "", ""
    for word in PRINTED[table].replace("/", " ").split():
        if word in DATA:
            data = word
        elif word.isdigit():
            found.setdefault((data, row), []).append(int(word) / 10)
        else:
            row = word
    return found


def shipped(table: Table) -> dict[tuple[str, str], list[float]]:
    found: dict[tuple[str, str], list[float]] = {}
    for entry in printed_entries(table):
        value = entry.published["accuracy"]
        assert value is not None
        found.setdefault((entry.data, entry.row), []).append(value)
    return found


def at_one(table: str, data: str) -> list[float]:
    ((_, values),) = [line for line in shipped(load(f"dpis/{table}")).items() if line[0][0] == data]
    return values


@pytest.mark.parametrize("table", TABLES)
def test_numbers_are_those_of_the_paper(table: str) -> None:
    assert shipped(load(f"dpis/{table}")) == printed(table)


def test_dpis_is_ahead_everywhere_as_the_text_says() -> None:
    found = shipped(load("dpis/table3"))
    for (data, row), values in found.items():
        if row == "non-DP":
            assert values[0] > max(found[data, "DPIS"])
        elif row != "DPIS":
            assert all(
                ours > other for ours, other in zip(found[data, "DPIS"], values, strict=True)
            )
        assert values == sorted(values)  # a larger budget never harms
    # "2-3% higher than the best of the competing methods" on IMDb
    rest = [values for (data, row), values in found.items() if data == "imdb" and row != "DPIS"]
    best = [max(column) for column in zip(*(v for v in rest if len(v) > 1), strict=True)]
    gains = [ours - other for ours, other in zip(found["imdb", "DPIS"], best, strict=True)]
    assert all(round(gain) in (2, 3) for gain in gains)
    # the scattering network cannot be applied to texts
    assert ("imdb", "DP-SGD-HF") not in found


def test_tables_agree_where_they_overlap() -> None:
    three, four = shipped(load("dpis/table3")), shipped(load("dpis/table4"))
    for data in DATA[:3]:
        assert four[data, "DPIS\\AC"] == three[data, "DPIS"][:4]
    # 62.1 and 62.2 at ε = 1, as the notes say
    pairs = zip(four["imdb", "DPIS+AC"], three["imdb", "DPIS"], strict=False)
    assert [ours == other for ours, other in pairs] == [True, False, True, True]
    for data in DATA:
        adapted = four[data, "DPIS+AC"][1]
        assert at_one("table7", data)[1] == adapted == max(at_one("table7", data))
        assert at_one("table8", data)[2] == adapted == max(at_one("table8", data))
        # "a_E = 0.8 leads to favorable results on all datasets"; "insensitive to the choice of k"
        assert at_one("table5", data)[2] >= max(at_one("table5", data)) - 0.11
        assert max(at_one("table6", data)) - min(at_one("table6", data)) < 0.21


# -- settings -----------------------------------------------------------------------------------


def every() -> list[Entry]:
    return [entry for table in TABLES for entry in printed_entries(load(f"dpis/{table}"))]


def test_settings_are_those_of_table_2() -> None:
    k = {"mnist": 5, "fashion-mnist": 5, "cifar10": 5, "imdb": 3}
    divider = {"mnist": 0.8, "fashion-mnist": 1.0, "cifar10": 0.8, "imdb": 0.8}
    for entry in every():
        method = build_method(entry.settings)
        if not isinstance(method, DPIS):
            continue
        assert not entry.sound
        n = lookup(entry.data).n_train
        varied = {"table5": "divider", "table6": "k"}
        axis = varied.get(entry.table.removeprefix("dpis/"))
        # λ is stated for IMDb only
        quantile = 0.4 if method.adapt and entry.data == "fashion-mnist" else 1.0
        expected = {"k": k[entry.data], "divider": divider[entry.data], "quantile": quantile}
        if axis is not None:
            expected[axis] = entry.column
        if entry.table == "dpis/table8":
            more = str(entry.column).removeprefix("λ*").replace(" ", "").replace("−", "-")
            expected["quantile"] = pytest.approx(quantile + float(more or 0))
        for name, value in expected.items():
            assert getattr(method, name) == value, (entry, name)
        # σ_K = σ_N = 0.02·N
        priced = [line for price, _ in noisy(method).stages(n, 1) for line in price]
        noises = {getattr(c, "multiplier") for c, what in priced if what != "training"}  # noqa: B009
        assert noises == {0.02 * n}
        adapts = entry.row == "DPIS+AC" or (entry.data == "imdb" and entry.row == "DPIS")
        assert method.adapt == adapts
        if adapts:
            outer = 4 if entry.table != "dpis/table7" else int(str(entry.column)[0])
            assert method.outer == pytest.approx(outer * method.clip)


def noisy(method: DPIS) -> DPIS:
    return DPIS(**{**method.options(), "noise": 1.0})


def test_budgets_and_optimizers_are_those_of_section_5() -> None:
    for entry in every():
        settings = entry.settings
        if settings.method == "sgd":
            assert (settings.epochs, entry.column) == (20, None)
            if entry.data == "imdb":
                assert (settings.batch, settings.optimizer) == (32, "adam")
            continue
        assert settings.delta == 1e-5
        by_epsilon = entry.table in ("dpis/table3", "dpis/table4")
        assert settings.epsilon == (entry.column if by_epsilon else 1.0)
        expected = ("adam", 0.0) if entry.data == "imdb" else ("sgd", 0.9)
        assert (settings.optimizer, settings.momentum) == expected
        assert settings.noise is None
        assert settings.epochs
    assert load("dpis/table3").runs == 5


def test_networks_are_those_of_section_5() -> None:
    for entry in printed_entries(load("dpis/table3")):
        settings = entry.settings
        handcrafted = entry.row in ("DPIS", "DP-SGD-HF", "non-DP")
        if entry.data == "imdb":
            expected = ("none", "imdb-bilstm")
            bounded = settings.activation == "tempered-sigmoid"  # which is tanh
            assert bounded == (entry.row == "DP-SGD-TS")
        elif handcrafted:
            expected = ("scattering", "scatter-cnn")
        else:
            expected = ("none", "cifar-cnn" if entry.data == "cifar10" else "mnist-cnn")
            tempered = entry.row in ("DP-SGD-TS", "DP-SGD-Decay")
            assert settings.activation == ("tempered-sigmoid" if tempered else "relu")
        assert (settings.features, settings.model) == expected
        if entry.row == "DP-SGD-Decay":
            method = build_method(settings)
            assert isinstance(method, NoiseDecay)
            assert 0.001 <= (method.rate or 0) <= 0.01


@pytest.mark.parametrize("data", DATA)
def test_every_entry_builds(data: str) -> None:
    """Models, and a method whose draws fit the records; no data is loaded for it."""
    card = lookup(data)
    built = set()
    for entry in every():
        settings = entry.settings
        if entry.data != data:
            continue
        assert settings.batch * settings.method_options.get("k", 1) <= card.n_train
        key = (settings.features, settings.model, settings.activation)
        if key not in built:
            built.add(key)
            shape = SHAPES.get(settings.features, {}).get(data, card.shape)
            models.build(
                settings.model,
                classes=len(card.classes),
                input_shape=shape,
                activation=settings.activation,
                seed=0,
            )
    assert built
