import json
import math

import pytest
from scipy.stats import norm

from reticent.errors import AccountingError, BudgetError, OptionError
from reticent.privacy import (
    Budget,
    Ledger,
    NonPrivate,
    SampledGaussian,
    SelectiveGaussian,
    filter_order_for,
)
from reticent.privacy.accountants import pld_epsilon
from reticent.privacy.charges import Charge
from reticent.privacy.statements import lost_at_the_end, state

CHARGE = SampledGaussian(0.01, 1.0)
GENTLE = SampledGaussian(0.01, 2.0)
BUDGET = Budget(1.0, 1e-5)


def test_charges_add_up_in_order_of_first_appearance():
    ledger = Ledger()
    ledger.charge(CHARGE, "training")
    ledger.charge(SampledGaussian(1.0, 20.0), "mean")
    ledger.charge(CHARGE, "training", count=4)
    assert [(e.purpose, e.count) for e in ledger.entries] == [("training", 5), ("mean", 1)]
    with pytest.raises(AttributeError):
        ledger.entries = ()
    assert isinstance(ledger.entries, tuple)


def test_the_budget_is_used_up_and_never_passed():
    ledger = Ledger(BUDGET)
    room = ledger.capacity(CHARGE)
    made = 0
    while ledger.affords(CHARGE):
        ledger.charge(CHARGE, "training")
        made += 1
    assert made == room > 10
    assert ledger.epsilon(1e-5) <= 1.0
    # one more would pass it, so the ledger refuses and records nothing
    assert Ledger(BUDGET).epsilon_with(((CHARGE, made + 1),)) > 1.0
    before = ledger.to_json()
    with pytest.raises(BudgetError, match=r"epsilon = 1 at delta = 1e-05"):
        ledger.charge(CHARGE, "training")
    with pytest.raises(BudgetError):
        ledger.pay(((CHARGE, "training"), (SampledGaussian(1.0, 50.0), "count")))
    assert ledger.to_json() == before


def test_capacity_is_the_same_however_it_is_reached():
    stepwise = Ledger(BUDGET)
    first = stepwise.capacity(CHARGE)
    for used in range(1, 20):
        stepwise.charge(CHARGE, "training")
        assert stepwise.capacity(CHARGE) == first - used
    at_once = Ledger(BUDGET)
    at_once.charge(CHARGE, "training", count=19)
    assert at_once.capacity(CHARGE) == first - 19


def test_a_remembered_yes_is_forgotten_when_something_else_is_paid():
    ledger = Ledger(BUDGET)
    room = ledger.capacity(CHARGE)
    assert Ledger(BUDGET).affords(CHARGE, room)
    assert not Ledger(BUDGET).affords(CHARGE, room + 1)
    fresh = Ledger(BUDGET)
    assert fresh.affords(CHARGE, room)
    fresh.charge(SampledGaussian(1.0, 8.0), "normalisation")
    assert not fresh.affords(CHARGE, room)
    assert fresh.affords(CHARGE)


def test_other_charges_shrink_the_capacity():
    ledger = Ledger(BUDGET)
    alone = ledger.capacity(CHARGE)
    ledger.charge(SampledGaussian(1.0, 8.0), "normalisation")
    assert 0 < ledger.capacity(CHARGE) < alone


def test_a_release_of_several_charges_is_paid_together():
    ledger = Ledger(BUDGET)
    bundle = ((CHARGE, "training"), (SampledGaussian(0.01, 5.0), "count"))
    room = ledger.capacity([charge for charge, _ in bundle])
    for _ in range(room):
        ledger.pay(bundle)
    assert [entry.count for entry in ledger.entries] == [room, room]
    assert ledger.epsilon(1e-5) <= 1.0
    with pytest.raises(BudgetError):
        ledger.pay(bundle)


def test_json_round_trip_gives_the_same_epsilon(tmp_path):
    ledger = Ledger(BUDGET)
    ledger.charge(SampledGaussian(0.1 + 0.2 - 0.29, 1 / 3 + 1), "training", count=17)
    ledger.note("treats the size as public")
    ledger.save(tmp_path / "ledger.json")
    again = Ledger.load(tmp_path / "ledger.json")
    assert again.to_json() == ledger.to_json()
    assert again.epsilon(1e-5) == ledger.epsilon(1e-5)
    (tmp_path / "run.json").write_text(json.dumps({"ledger": ledger.to_json()}))
    assert Ledger.load(tmp_path / "run.json").epsilon(1e-5) == ledger.epsilon(1e-5)


def corrupted(change):
    ledger = Ledger(BUDGET)
    ledger.charge(CHARGE, "training")
    data = ledger.to_json()
    change(data)
    return data


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d.update(format="other"),
        lambda d: d.update(adjacency="replace-one"),
        lambda d: d.pop("entries"),
        lambda d: d["entries"][0].update(count=-1),
        lambda d: d["entries"][0].update(count=2.5),
        lambda d: d["entries"][0]["charge"].update(kind="free"),
        lambda d: d["entries"][0]["charge"].update(multiplier=0),
        lambda d: d["entries"][0]["charge"].update(rate=0),
        lambda d: d["entries"][0]["charge"].update(multiplier=float("nan")),
        lambda d: d["entries"][0]["charge"].update(extra=1),
        lambda d: d["entries"][0]["charge"].pop("rate"),
        lambda d: d["entries"][0].update(adaptive=True),
        lambda d: d["entries"].append("text"),
        lambda d: d["budget"].update(epsilon=-1),
    ],
)
def test_a_damaged_ledger_is_refused(change):
    with pytest.raises((AccountingError, OptionError)):
        Ledger.from_json(corrupted(change))


def test_unreadable_files_are_named(tmp_path):
    with pytest.raises(AccountingError, match=r"nowhere\.json"):
        Ledger.load(tmp_path / "nowhere.json")
    (tmp_path / "half.json").write_text('{"format": ')
    with pytest.raises(AccountingError, match=r"half.json.*not JSON"):
        Ledger.load(tmp_path / "half.json")
    (tmp_path / "deep.json").write_text("[" * 100_000)
    with pytest.raises(AccountingError, match="nested too deeply"):
        Ledger.load(tmp_path / "deep.json")
    (tmp_path / "list.json").write_text("[1]")
    with pytest.raises(AccountingError, match="not a ledger"):
        Ledger.load(tmp_path / "list.json")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda d: d.clear(), "not a ledger: 'format' is missing"),
        (lambda d: d.pop("notes"), "not a ledger: 'notes' is missing"),
        (lambda d: d.update(entries=3), "not a ledger: 'int' object is not iterable"),
        (
            lambda d: d["entries"][0]["charge"].update(multiplier=-1),
            "entry 1: multiplier = -1: must be greater than 0",
        ),
        (lambda d: d["entries"][0].pop("count"), "entry 1: 'count' is missing"),
        (lambda d: d["entries"].append("text"), r"entry \d: 'str' object"),
    ],
)
def test_the_place_in_a_ledger_file_is_named(change, says, tmp_path):
    path = tmp_path / "kept.json"
    path.write_text(json.dumps(corrupted(change)))
    with pytest.raises(AccountingError, match=rf"ledger '.*kept\.json': {says}"):
        Ledger.load(path)


def test_adaptive_charges_need_the_filter():
    with pytest.raises(AccountingError, match="filter_order"):
        Ledger(BUDGET).charge(CHARGE, "training", adaptive=True)
    order = filter_order_for(BUDGET, ((GENTLE, 100),))
    ledger = Ledger(BUDGET, filter_order=order)
    ledger.charge(GENTLE, "training", adaptive=True, count=10)
    statement = ledger.statement(1e-5)
    assert statement.accountant == "filter"
    for accountant in ("pld", "rdp"):
        with pytest.raises(AccountingError, match="depend on earlier releases"):
            ledger.epsilon(1e-5, accountant)
    with pytest.raises(BudgetError):
        ledger.charge(SampledGaussian(1.0, 0.5), "training", adaptive=True)
    again = Ledger.from_json(ledger.to_json())
    assert again.statement(1e-5) == statement
    # ordinary charges in the same ledger go through the filter too
    left = ledger.divergence_left()
    ledger.charge(SampledGaussian(0.01, 4.0), "count")
    assert ledger.statement(1e-5).accountant == "filter"
    assert ledger.divergence_left() < left


def test_a_filter_states_what_it_keeps_not_what_was_spent():
    # how much was spent depends on the releases: read off afterwards, it bounds nothing
    ledger = Ledger(BUDGET, filter_order=20.0)
    ledger.charge(GENTLE, "training", adaptive=True)
    assert ledger.epsilon(BUDGET.delta) == BUDGET.epsilon
    assert ledger.epsilon(2 * BUDGET.delta) == BUDGET.epsilon
    smaller = ledger.epsilon(BUDGET.delta / 10)
    assert smaller == pytest.approx(BUDGET.epsilon + math.log(10) / 19, rel=1e-12)
    room = ledger.divergence_left()
    cost = float(GENTLE.rdp((20.0,))[0])
    ledger.charge(GENTLE, "training", adaptive=True, count=int(room / cost * (1 - 1e-9)))
    assert ledger.divergence_left() < cost
    assert ledger.epsilon(BUDGET.delta) == BUDGET.epsilon
    without = Ledger(filter_order=20.0)
    without.charge(GENTLE, "training", adaptive=True)
    assert math.isinf(without.epsilon(1e-5))
    beyond = ledger.to_json()
    beyond["entries"][0]["count"] *= 3
    assert math.isinf(Ledger.from_json(beyond).epsilon(1e-5))


def test_the_order_of_a_filter_is_fixed_once():
    ledger = Ledger(BUDGET)
    ledger.charge(GENTLE, "count")
    ledger.use_filter(12.0)
    ledger.use_filter(12.0)
    with pytest.raises(AccountingError, match="fixed already"):
        ledger.use_filter(13.0)
    with pytest.raises(AccountingError, match="greater than 1"):
        Ledger(BUDGET).use_filter(1.0)


def test_what_another_accountant_allowed_is_forgotten():
    charge = SampledGaussian(0.02, 1.2)
    ledger = Ledger(Budget(2.0, 1e-5), filter_order=12.0)
    ledger.capacity(charge)
    ledger.charge(charge, "adaptive", adaptive=True)
    while ledger.affords(charge):
        ledger.pay(((charge, "training"),))
    assert ledger.epsilon(1e-5) <= 2.0


def test_the_filter_stops_before_the_budget_is_passed():
    ledger = Ledger(BUDGET, filter_order=filter_order_for(BUDGET, ((GENTLE, 200),)))
    multiplier, made = GENTLE.multiplier, 0
    while True:
        try:
            ledger.charge(SampledGaussian(0.01, multiplier), "training", adaptive=True)
        except BudgetError:
            break
        multiplier *= 0.999  # what an adaptive method might do
        made += 1
    assert made > 20
    assert ledger.epsilon(1e-5) <= 1.0


def test_a_plan_covers_adaptive_charges():
    ledger = Ledger(BUDGET)
    plan = SampledGaussian(0.02, 1.0)
    ledger.charge(SampledGaussian(0.015, 1.3), "training", adaptive=True, within=plan, count=5)
    reference = Ledger()
    reference.charge(plan, "training", count=5)
    assert ledger.epsilon(1e-5) == reference.epsilon(1e-5)
    assert ledger.statement(1e-5).accountant == "pld"
    assert Ledger.from_json(ledger.to_json()).epsilon(1e-5) == reference.epsilon(1e-5)
    for charge in (SampledGaussian(0.03, 1.3), SampledGaussian(0.01, 0.9)):
        with pytest.raises(AccountingError, match="not covered"):
            ledger.charge(charge, "training", adaptive=True, within=plan)


def test_zero_releases_cost_nothing_and_no_noise_costs_everything():
    assert Ledger().epsilon(1e-5) == 0.0
    assert Ledger().statement(1e-5).to_json()["guarantee"] == "differential-privacy"
    ledger = Ledger()
    ledger.charge(NonPrivate("test"), "training")
    statement = ledger.statement(1e-5)
    assert statement.epsilon == math.inf
    assert statement.to_json() == {
        "epsilon": None,
        "delta": 1e-5,
        "accountant": "rdp",
        "adjacency": "add-remove",
        "guarantee": "none",
    }
    with pytest.raises(BudgetError):
        Ledger(BUDGET).charge(NonPrivate("test"), "training")


def test_bad_values_are_named():
    for option, make in {
        "epsilon": lambda: Budget(0, 1e-5),
        "delta": lambda: Budget(1, 1.0),
        "adjacency": lambda: Budget(1, 1e-5, "replace-one"),
        "multiplier": lambda: SampledGaussian(0.1, 0),
        "rate": lambda: SampledGaussian(0, 1),
        "count": lambda: Ledger().charge(CHARGE, "x", count=0),
        "accountant": lambda: Ledger().epsilon(1e-5, "moments"),
    }.items():
        with pytest.raises(OptionError, match=option):
            make()
    for value in (-1, float("nan"), float("inf"), "much", "3", True):
        with pytest.raises(OptionError, match="epsilon"):
            Budget(value, 1e-5)
    with pytest.raises(OptionError, match="delta"):
        Ledger().epsilon(0)
    with pytest.raises(AccountingError, match="filter_order"):
        Ledger(filter_order=1.0)


def test_a_charge_of_a_new_kind_without_pld_falls_back_to_renyi():
    class Odd(Charge):
        def rdp(self, orders):
            return CHARGE.rdp(orders)

    ledger = Ledger()
    ledger.charge(Odd(), "odd", count=10)
    reference = Ledger()
    reference.charge(CHARGE, "training", count=10)
    statement = ledger.statement(1e-5)
    assert statement.accountant == "rdp"
    assert statement.epsilon == reference.epsilon(1e-5, "rdp")
    with pytest.raises(AccountingError, match="no privacy-loss distribution"):
        ledger.epsilon(1e-5, "pld")


def test_what_is_part_of_a_plan_that_fits_fits():
    plan = ((GENTLE, 20), (SampledGaussian(0.01, 4.0), 30))
    ledger = Ledger(BUDGET)
    assert ledger.affords_all(plan)
    asked = []
    ledger._state = lambda *words, **options: asked.append(words)  # nobody is asked again
    for charge, count in plan:
        for _ in range(count):
            assert ledger.affords(charge)
            ledger.pay(((charge, "training"),))
    assert not asked
    del ledger._state
    assert ledger.epsilon(BUDGET.delta) <= BUDGET.epsilon
    # but not what goes beyond it
    large = SampledGaussian(1.0, 0.3)
    assert not ledger.affords(large)
    assert not ledger.affords_all(((GENTLE, 1), (large, 1)))


# -- where drawn noise ends -----------------------------------------------------------------------


@pytest.mark.parametrize("rate", [1.0, 0.01])
def test_the_end_of_drawn_noise_is_taken_from_delta(rate):
    """P(z > 12 − 1/σ) for each release that a record takes part in."""
    for sigma, beyond in ((0.15, norm.sf(12 - 1 / 0.15)), (0.14, norm.sf(12 - 1 / 0.14))):
        charge, count = SampledGaussian(rate, sigma), 3
        lost = count * rate * beyond
        assert 1e-6 * 1e-5 < lost < 1e-5
        found = state(((charge, count),), 1e-5, "pld").epsilon
        assert found == pytest.approx(pld_epsilon(((charge, count),), 1e-5 - lost), rel=1e-9)
        assert found > pld_epsilon(((charge, count),), 1e-5)
    assert state(((SampledGaussian(rate, 0.05), 1),), 1e-5, None).epsilon == math.inf


def test_usual_noise_ends_where_nobody_looks():
    """Of 100,000 releases at σ = 0.5 less than a millionth of δ = 1e-12 is lost."""
    bill = ((SampledGaussian(1.0, 0.5), 100_000),)
    assert lost_at_the_end(bill, 1e-12, adaptive=False) == 0
    assert 0 < sum(count * charge.cut for charge, count in bill) < 1e-18


def test_charges_that_follow_releases_share_no_delta():
    bill = ((SampledGaussian(1.0, 0.15), 3),)
    assert state(bill, 1e-5, "rdp").epsilon < math.inf
    assert state(bill, 1e-5, "filter", filter_order=2.0).epsilon == math.inf


def test_a_selected_release_may_end_in_any_of_its_trials():
    charge = SelectiveGaussian(0.1, 0.15, 0.01, 1.3, 0.0, 100)
    assert charge.cut == pytest.approx(0.1 * norm.sf(12 - 1 / 0.15) / charge.passing[0])


@pytest.mark.parametrize(
    ("use", "words"),
    [
        (lambda: Ledger(3), "budget = 3: must be a Budget"),
        (lambda: Ledger().charge(3, "training"), "charge = 3: must be a Charge"),
    ],
)
def test_what_is_no_budget_or_no_charge_is_named(use, words):
    with pytest.raises(OptionError, match=words):
        use()
