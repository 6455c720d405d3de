"""The ledger: what was paid, for what, and the ε that follows from it.

Append-only. It is charged before a release is made, refuses what the budget cannot afford, and
serialises to a JSON file from which anyone can recompute ε.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from reticent.errors import AccountingError, BudgetError, OptionError, ReticentError, truth, whole
from reticent.files import read_json, to_json, write_atomically
from reticent.privacy.accountants import Bill
from reticent.privacy.budget import ADJACENCY, Budget
from reticent.privacy.capacity import most
from reticent.privacy.charges import Charge
from reticent.privacy.filters import checked_order, divergence_left, pledged_epsilon
from reticent.privacy.statements import (
    EXACT,
    Statement,
    fast_capacity,
    state,
    valid_accountants,
)

FORMAT = "reticent-ledger/1"


@dataclass(frozen=True)
class Entry:
    """One line: `count` releases at `charge`, and what they paid for.

    `adaptive` marks a charge whose size was chosen after seeing earlier releases. `within` is then
    the charge planned for it before the run, if there was one: it must cover the real charge, and
    it is what the accountants count.
    """

    charge: Charge
    count: int
    purpose: str
    adaptive: bool = False
    within: Charge | None = None

    @property
    def accounted(self) -> Charge:
        """The charge that accountants add up."""
        return self.charge if self.within is None else self.within

    def to_json(self) -> dict[str, Any]:
        """The entry as JSON-ready data."""
        line: dict[str, Any] = {
            "charge": self.charge.to_json(),
            "count": self.count,
            "purpose": self.purpose,
            "adaptive": self.adaptive,
        }
        if self.within is not None:
            line["within"] = self.within.to_json()
        return line


class Ledger:
    """An append-only list of charges.

    Args:
        budget: What may be spent; without one, charges are recorded and never refused.
        filter_order: The single Rényi order of a privacy filter, fixed now. Needed as soon as a
            charge depends on earlier releases.
        planned: Whether everything that this ledger will pay for is fixed before the first release
            is seen. Several trainings are paid from one ledger only then: what it proves of all
            together does not hold for a later one that followed from what an earlier one gave.

    Example:
        >>> from reticent.privacy import Budget, Ledger, SampledGaussian
        >>> ledger = Ledger(Budget(epsilon=3, delta=1e-5))
        >>> ledger.charge(SampledGaussian(rate=0.01, multiplier=1.0), "training", count=100)
        >>> ledger.epsilon(1e-5) < 3
        True
    """

    def __init__(
        self,
        budget: Budget | None = None,
        *,
        filter_order: float | None = None,
        planned: bool = False,
    ) -> None:
        if budget is not None and not isinstance(budget, Budget):
            raise OptionError("budget", budget, "must be a Budget(epsilon=..., delta=...)")
        self.budget = budget
        self.filter_order = None if filter_order is None else checked_order(filter_order)
        self._planned = truth("planned", planned)
        self._entries: list[Entry] = []
        self._notes: list[str] = []
        # per bundle: what was paid then, and the most of it that was afforded
        self._capacity: dict[tuple[Charge, ...], tuple[dict[Any, int], int]] = {}
        self._fits: dict[Charge, int] = {}  # a whole bill that was found to be within the budget

    @property
    def entries(self) -> tuple[Entry, ...]:
        """The lines so far, in order of first appearance."""
        return tuple(self._entries)

    @property
    def planned(self) -> bool:
        """Whether whoever opened it said that all it pays for was fixed beforehand."""
        return self._planned

    @property
    def notes(self) -> tuple[str, ...]:
        """Assumptions a reader must know, such as a data set size treated as public."""
        return tuple(self._notes)

    def note(self, text: str) -> None:
        """Add an assumption; saying it twice records it once."""
        if text not in self._notes:
            self._notes.append(text)

    # -- accounting ---------------------------------------------------------------------------

    def _bill(self, extra: Bill = ()) -> Bill:
        counts: dict[Charge, int] = {}
        for charge, count in (*((e.accounted, e.count) for e in self._entries), *extra):
            counts[charge] = counts.get(charge, 0) + count
        return tuple((charge, count) for charge, count in counts.items() if count)

    @property
    def adaptive(self) -> bool:
        """Whether some charge depended on earlier releases and no plan covers it."""
        return any(entry.adaptive and entry.within is None for entry in self._entries)

    def epsilon(self, delta: float, accountant: str | None = None) -> float:
        """An upper bound on ε at `delta`; by default the tightest that is valid here."""
        return self.statement(delta, accountant).epsilon

    def statement(self, delta: float, accountant: str | None = None) -> Statement:
        """ε with the accountant that proved it. Refuses an accountant that proves nothing here."""
        Budget(epsilon=1, delta=delta)  # δ is checked there
        if self.adaptive and self.filter_order is not None and accountant in (None, "filter"):
            pledged = pledged_epsilon(self._bill(), self.budget, self.filter_order, delta)
            return Statement(pledged, delta, "filter")
        return self._state(self._bill(), delta, accountant)

    def divergence_left(self) -> float:
        """How much Rényi divergence at the filter's order may still be charged; for planning."""
        if self.budget is None or self.filter_order is None:
            raise AccountingError("the ledger has no budget or no filter_order")
        return divergence_left(self._bill(), self.budget, self.filter_order)

    def use_filter(self, order: float) -> None:
        """Fix the filter's order, which must not depend on any release; once."""
        if self.adaptive or self.filter_order not in (None, order):
            raise AccountingError(
                f"filter_order = {order!r}: the order {self.filter_order!r} is fixed already"
            )
        self.filter_order = checked_order(order)

    def _state(self, bill: Bill, delta: float, accountant: str | None) -> Statement:
        return state(
            bill, delta, accountant, adaptive=self.adaptive, filter_order=self.filter_order
        )

    def quick_epsilon(self, delta: float) -> float:
        """An upper bound that takes no time, for a progress display: not always the tightest."""
        quick = [name for name in self.accountants if name != EXACT]
        return self.epsilon(delta, quick[0] if len(quick) < len(self.accountants) else None)

    @property
    def accountants(self) -> tuple[str, ...]:
        """The accountants that prove something here, tightest first."""
        return valid_accountants(self._bill(), adaptive=self.adaptive)

    # -- spending -----------------------------------------------------------------------------

    def epsilon_with(self, extra: Bill, accountant: str | None = None) -> float:
        """ε at the budget's δ if these charges were added too; nothing is recorded."""
        if self.budget is None:
            raise BudgetError("the ledger has no budget to read a delta from")
        return self._state(self._bill(extra), self.budget.delta, accountant).epsilon

    def affords_all(self, extra: Bill) -> bool:
        """Whether a whole plan stays within the budget; True where there is none.

        A yes is remembered: what is part of a bill that fits, fits.
        """
        if self.budget is None:
            return True
        bill = dict(self._bill(extra))
        if all(count <= self._fits.get(charge, 0) for charge, count in bill.items()):
            return True
        ways = (None,) if self.adaptive else ("rdp", None)
        if not any(self.epsilon_with(extra, by) <= self.budget.epsilon for by in ways):
            return False
        self._fits = bill
        return True

    def capacity(self, charges: Charge | Sequence[Charge], accountant: str | None = None) -> int:
        """How many more releases at these charges the budget affords (the ledger needs one)."""
        if self.budget is None:
            raise BudgetError("the ledger has no budget, so its capacity has no limit")
        bundle = (charges,) if isinstance(charges, Charge) else tuple(charges)
        if accountant is not None:
            return self._search_capacity(bundle, self.budget, accountant)
        known = self._known_room(bundle)
        if known >= 0:
            return known
        room = self._search_capacity(bundle, self.budget, None)
        self._capacity[bundle] = (dict(self._bill()), room)
        return room

    def _known_room(self, bundle: tuple[Charge, ...]) -> int:
        """What an earlier answer leaves, if only this bundle was paid since; -1 if none does."""
        base, room = self._capacity.get(bundle, ({}, -1))
        if room < 0:
            return -1
        counts = dict(self._bill())
        used = counts.get(bundle[0], 0) - base.get(bundle[0], 0)
        expected = dict(base)
        for charge in bundle:
            expected[charge] = expected.get(charge, 0) + used
        same = {k: v for k, v in expected.items() if v} == counts
        return max(room - used, 0) if same and used >= 0 else -1

    def _search_capacity(
        self, bundle: tuple[Charge, ...], budget: Budget, accountant: str | None
    ) -> int:
        def fits(count: int, by: str | None) -> bool:
            bill = self._bill(tuple((charge, count) for charge in bundle))
            return self._state(bill, budget.delta, by).epsilon <= budget.epsilon

        quick = None
        if not self.adaptive:
            each = tuple((charge, bundle.count(charge)) for charge in dict.fromkeys(bundle))
            quick = fast_capacity(self._bill(), each, budget.epsilon, budget.delta, accountant)
        return most(fits, accountant, adaptive=self.adaptive, quick=quick)

    def affords(self, charges: Charge | Sequence[Charge], count: int = 1) -> bool:
        """Whether `count` more releases stay within the budget; True where there is no budget.

        A yes to many is remembered, so asking again before each of them costs a look-up.
        """
        bundle = (charges,) if isinstance(charges, Charge) else tuple(charges)
        if self.budget is not None and self._known_room(bundle) >= count:
            return True
        return self.affords_all(tuple((charge, count) for charge in bundle))

    def pay(self, bundle: Sequence[tuple[Charge, str]]) -> None:
        """Pay for one release that costs several charges, each with its purpose: all or nothing."""
        charges = tuple(charge for charge, _ in bundle)
        if not self.affords(charges):
            raise self._refusal(charges, ", ".join(purpose for _, purpose in bundle))
        for charge, purpose in bundle:
            self._entries = self._merged(Entry(charge, 1, purpose))

    def charge(
        self,
        charge: Charge,
        purpose: str,
        *,
        count: int = 1,
        adaptive: bool = False,
        within: Charge | None = None,
    ) -> None:
        """Pay for `count` releases that are about to be made.

        Raises:
            BudgetError: The budget does not afford it; nothing is recorded and nothing may be
                released.
            AccountingError: An adaptive charge with neither a filter order nor a covering plan.
        """
        whole("count", count, least=1)
        if not isinstance(charge, Charge):
            raise OptionError("charge", charge, "must be a Charge, such as SampledGaussian(...)")
        entry = Entry(charge, count, purpose, adaptive, within)
        self._check(entry)
        merged = self._merged(entry)
        if self.budget is None:
            allowed = True
        elif adaptive and within is None:
            # the filter: at the fixed order, the sum so far plus this charge
            trial = self._copy_with(merged)
            spent = trial._state(trial._bill(), self.budget.delta, None).epsilon
            allowed = spent <= self.budget.epsilon
        else:
            allowed = self.affords(entry.accounted, count)
        if not allowed:
            raise self._refusal((charge,) * count, purpose)
        if adaptive:
            self._capacity.clear()  # other accountants may have answered before
            self._fits = {}
        self._entries = merged

    def _check(self, entry: Entry) -> None:
        if entry.within is not None and not entry.within.covers(entry.charge):
            raise AccountingError(f"{entry.charge} is not covered by the planned {entry.within}")
        if entry.adaptive and entry.within is None and self.filter_order is None:
            raise AccountingError(
                f"{entry.charge} depends on earlier releases: open the ledger with a "
                "filter_order, or name the charge planned for it beforehand (within=...)"
            )

    def _refusal(self, charges: Sequence[Charge], purpose: str) -> BudgetError:
        assert self.budget is not None
        return BudgetError(
            f"epsilon = {self.budget.epsilon:g} at delta = {self.budget.delta:g}: "
            f"{len(charges)} more charge(s) of {charges[0]} for {purpose!r} would exceed it"
        )

    def _merged(self, entry: Entry) -> list[Entry]:
        lines = list(self._entries)
        for position, line in enumerate(lines):
            if replace(line, count=entry.count) == entry:
                lines[position] = replace(line, count=line.count + entry.count)
                return lines
        return [*lines, entry]

    def _copy_with(self, entries: list[Entry]) -> Ledger:
        copy = Ledger(self.budget, filter_order=self.filter_order)
        copy._entries = entries
        return copy

    def go_on_with(self, later: Ledger) -> None:
        """Become what this ledger was at a later time, as a file or checkpoint kept it."""
        self.filter_order, self._planned = later.filter_order, later.planned
        self._entries, self._notes = list(later._entries), list(later._notes)
        self._capacity.clear()
        self._fits = {}

    # -- files --------------------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        """Everything needed to recompute ε."""
        return {
            "format": FORMAT,
            "adjacency": ADJACENCY,
            "budget": None if self.budget is None else self.budget.to_json(),
            "filter_order": self.filter_order,
            **({"planned": True} if self.planned else {}),
            "entries": [entry.to_json() for entry in self._entries],
            "notes": list(self._notes),
        }

    @classmethod
    def from_json(cls, data: Any) -> Ledger:
        """Read a ledger back, refusing anything that is not exactly one."""
        at = "not a ledger"
        try:
            if not isinstance(data, dict):
                raise AccountingError(f"must be an object, found {type(data).__name__}")
            for name, must in (("format", FORMAT), ("adjacency", ADJACENCY)):
                if data[name] != must:
                    raise AccountingError(f"{name} {data[name]!r}: must be {must!r}")
            budget = None if data["budget"] is None else Budget(**data["budget"])
            order, planned = data["filter_order"], data.get("planned", False)
            ledger = cls(budget, filter_order=order, planned=planned)
            ledger._notes = list(dict.fromkeys(str(text) for text in data["notes"]))
            for number, line in enumerate(data["entries"], 1):
                at = f"entry {number}"
                within = line.get("within")
                entry = Entry(
                    charge=Charge.from_json(line["charge"]),
                    count=whole("count", line["count"], least=1),
                    purpose=str(line["purpose"]),
                    adaptive=bool(line["adaptive"]),
                    within=None if within is None else Charge.from_json(within),
                )
                ledger._check(entry)
                ledger._entries.append(entry)
        except KeyError as error:
            raise AccountingError(f"{at}: {error} is missing") from None
        except (TypeError, AttributeError, ReticentError) as error:
            raise AccountingError(f"{at}: {error}") from None
        return ledger

    def save(self, path: str | Path) -> None:
        """Write the JSON form."""
        write_atomically(Path(path), to_json(self.to_json()))

    @classmethod
    def load(cls, path: str | Path) -> Ledger:
        """Read a ledger file, or the ledger inside a `run.json`."""
        where = f"ledger {str(path)!r}"
        try:
            data = read_json(Path(path))
            nested = isinstance(data, dict) and isinstance(data.get("ledger"), dict)
            return cls.from_json(data["ledger"] if nested else data)
        except OSError as error:
            raise AccountingError(f"{where}: {error.strerror}") from None
        except AccountingError as error:
            raise AccountingError(f"{where}: {error}") from None
        except ValueError as error:
            raise AccountingError(f"{where} is not JSON: {error}") from None
