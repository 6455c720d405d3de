"""Numbers that differ from paper to paper are listed, each beside ours."""

from __future__ import annotations

import importlib

import pytest

from reticent.reproduction.tables import load


@pytest.fixture
def found(tables):
    return importlib.import_module("reproduction_disagreements")


def recorded(table, **places):
    """A record with our mean of one place."""
    line = {"measures": {"accuracy": {"mean": 53.16}}, "variant": "sound", **places}
    return {"table": table, "changes": {}, "entries": [line]}


def test_what_two_papers_print_of_one_thing_is_compared(found):
    record = recorded("dpis/table3", row="DP-SGD", data="cifar10", column=2)
    cases = found.disagreements([record], 1.0)
    # DPIS's Table 3 and DPSUR's Table 2, both DP-SGD with ReLU on CIFAR-10 at ε = 2
    case = next(
        some
        for some in cases
        if some[0].entry.data == "cifar10"
        and some[0].entry.settings.epsilon == 2
        and some[0].entry.row == "DP-SGD"
    )
    assert [(one.table, one.entry.row, one.number) for one in case] == [
        ("dpis/table3", "DP-SGD", 54.7),
        ("dpsur/table2", "DPSGD", 51.33),
    ]
    assert [one.ours for one in case] == [53.16, None]
    assert found.apart(case) == pytest.approx(3.37)
    text = "\n".join(found.section([record], 1.0))
    assert (
        "| cifar10 | 2 | 3.37 | dpis table3, DP-SGD: 54.70 (53.16); dpsur table2, DPSGD: 51.33"
        " (not run) |" in text
    )


def test_only_numbers_of_different_papers_that_are_far_enough_apart(found):
    every = found.disagreements([], -1.0)
    several = [some for some in every if len(some) > 1]
    for some in several:
        assert len({load(one.table).paper for one in some}) == len(some)
        assert len({one.entry.data for one in some}) == 1
        assert len({one.entry.settings.epsilon for one in some}) == 1
        assert len({one.entry.settings.model for one in some}) == 1
    far = found.disagreements([], 1.0)
    assert [some for some in several if found.apart(some) > 1.0] == far
    assert far
    assert found.section([], 100.0) == []


def test_how_many_cannot_be_met_at_once_is_counted(found):
    far = [some for some in found.disagreements([], 1.0) if found.apart(some) > 2.0]
    lines = found.section([], 1.0)
    assert any(f"{len(far)} of these {len(lines) - 7} are more than 2 points" in x for x in lines)
