"""Watching a method at work: is the noise what was charged, before it was drawn, and is it noise?

A few releases of the real method are made with fresh coins. Every noisy value, every draw and the
state of the ledger at that moment are written down, and then:

- each noisy value had been paid for when its noise was drawn, with a multiplier at least as large
  as that of the charge, and each charge was followed by its noise;
- records were drawn at the rates that were charged, and came up as often as they should;
- the noise, divided by what it should be, is standard normal (Kolmogorov and Smirnov, and its
  variance), and no noise was used twice.

The statistical checks together raise a false alarm with probability at most 1e-6.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from scipy import stats
from torch import nn

from reticent import training
from reticent.audit.coverage import Prices
from reticent.audit.watching import Notebook, World
from reticent.coins import Coins
from reticent.data.records import as_records
from reticent.errors import OptionError, whole
from reticent.methods.base import Method
from reticent.privacy import Charge

FALSE_ALARM = 1e-6
MOST_VALUES = 1_000_000  # of noise, for the tests of its law
MOST_EACH, MOST_COMPARED = 2000, 20_000  # values that are compared with each other
NEAR = 1e-11  # relative: so near are the same numbers after a sum was added and taken off
MANY_RECORDS = 100


@dataclass(frozen=True)
class Check:
    """One question and its answer; `p_value` where chance plays a part."""

    name: str
    passed: bool
    detail: str
    p_value: float | None = None

    def to_json(self) -> dict[str, Any]:
        """As JSON-ready data."""
        return asdict(self)


@dataclass(frozen=True)
class ConductReport:
    """What was seen in a few releases."""

    method: str
    releases: int
    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        """Whether every check passed."""
        return all(check.passed for check in self.checks)

    def to_json(self) -> dict[str, Any]:
        """As JSON-ready data."""
        return {
            "method": self.method,
            "releases": self.releases,
            "passed": self.passed,
            "false_alarm": FALSE_ALARM,
            "checks": [check.to_json() for check in self.checks],
        }


def watch(
    model: nn.Module,
    data: Any,
    *,
    method: Method,
    releases: int = 20,
    coins: Coins | None = None,
    on_release: Callable[[int, int], None] | None = None,
    **options: Any,
) -> ConductReport:
    """Make a few releases of a method and look at its draws, charges and noise.

    Args:
        model: The model to train; a copy is used.
        data: The records, as for `reticent.run`.
        method: Any method.
        releases: How many releases.
        coins: Fresh by default.
        on_release: Called with (release, releases) after each.
        **options: As for `reticent.run`: optimizer, budget, steps, n, device, ...
    """
    whole("releases", releases)
    if "folder" in options:
        raise OptionError("folder", options["folder"], "this training is thrown away; leave it out")
    made = training.run(
        copy.deepcopy(model),
        data,
        method=method,
        coins=Coins.fresh() if coins is None else coins,
        **{"steps": releases, **options},
    )
    world = World(made)
    records = as_records(data).n
    seen: list[tuple[Notebook, Counter[Charge], Counter[Charge]]] = []
    for release in range(releases):
        before = _paid(world)
        notebook = world.release()
        if notebook is None:
            break
        seen.append((notebook, before, _paid(world)))
        if on_release is not None:
            on_release(release + 1, releases)
    checks = [*_charges(seen), *_chance(seen, records)]
    return ConductReport(method.name, len(seen), tuple(checks))


def _paid(world: World) -> Counter[Charge]:
    return _added((entry.charge, entry.count) for entry in world.run.ledger.entries)


def _added(lines: Iterable[tuple[Charge, int]]) -> Counter[Charge]:
    """Lines of one charge for several purposes add up."""
    total: Counter[Charge] = Counter()
    for charge, count in lines:
        total[charge] += count
    return total


def _charges(seen: list[tuple[Notebook, Counter[Charge], Counter[Charge]]]) -> list[Check]:
    """Paid first, enough, for what was done; and done what was paid for."""
    noise, choices, rates, made = [], [], [], []
    for number, (notebook, before, after) in enumerate(seen):
        bought = Prices.of((after - before).items())
        if bought.free:
            return [Check("charges", True, "no guarantee is claimed: there is nothing to compare")]
        if bought.unknown:
            kinds = ", ".join(sorted(bought.unknown))
            return [Check("charges", False, f"nothing is known here of charges {kinds}")]
        for trial in notebook.trials or [0]:
            calls = [n for n in notebook.noised.values() if n.address[2] == trial]
            for last, call in enumerate(calls):
                then = Prices.of((_added(call.paid) - before).items())
                used = Counter(c.multiplier for c in calls[: last + 1])
                wrong, _ = then.unpaid_noise(used)
                if wrong:
                    noise.append(f"release {number}: when drawn, {wrong}")
            if bought.each_trial:
                wrong = bought.unpaid_trial(
                    [c.multiplier for c in calls if c.total.numel() > 1],
                    [c.multiplier for c in calls if c.total.numel() == 1],
                )
                noise += [f"release {number}: {wrong}"] if wrong else []
            picked = [c for c in notebook.chosen.values() if c.address[2] == trial]
            for last, choice in enumerate(picked):
                then = Prices.of((_added(choice.paid) - before).items())
                wrong = then.unpaid_choices(Counter(c.epsilon for c in picked[: last + 1]))
                if wrong:
                    choices.append(f"release {number}: when made, {wrong}")
        wrong, left = bought.unpaid_noise(
            Counter(n.multiplier for n in notebook.noised.values())
            if not bought.each_trial
            else Counter(n.multiplier for n in notebook.noised.values() if n.address[2] == 0)
        )
        if left or (bought.each_trial and not notebook.noised):
            made.append(f"release {number}: noise was charged that was not drawn by the run")
        for draw in notebook.draws:
            wrong = "" if draw.rate is None else bought.unpaid_rate(draw.rate)
            if wrong:
                rates.append(f"release {number}: {draw.address[0]}: {wrong}")
        if not notebook.draws and any(rate < 1 for rate in bought.rates):
            rates.append(f"release {number}: sampled records were charged, none were drawn")
    named = {
        "noise is paid for before it is drawn": noise,
        "choices are paid for before they are made": choices,
        "what is charged is done": made,
        "records are drawn at the charged rate": rates,
    }
    return [
        Check(name, not found, found[0] if found else f"in {len(seen)} releases")
        for name, found in named.items()
    ]


def _chance(
    seen: list[tuple[Notebook, Counter[Charge], Counter[Charge]]], records: int
) -> list[Check]:
    """Draws and noise follow the laws that the accountants assume."""
    tests: list[tuple[str, str, float]] = []
    rates: dict[tuple[str, float], list[torch.Tensor]] = {}
    noise: dict[str, list[torch.Tensor]] = {}
    for notebook, _, _ in seen:
        for draw in notebook.draws:
            if draw.rate is not None and draw.rate < 1:
                rates.setdefault((draw.address[0], draw.rate), []).append(draw.drawn)
        for call in notebook.noised.values():
            if call.multiplier:
                noise.setdefault(call.address[0], []).append(call.noise.flatten().cpu())
    for (stream, rate), draws in rates.items():
        sizes = [len(drawn) for drawn in draws]
        tests.append(_frequency(stream, rate, sizes, records))
        if rate * (1 - rate) * records >= 10:
            tests.append(_spread(stream, rate, sizes, records))
        if records >= MANY_RECORDS and len(draws) > 1:
            tests.append(_by_record(stream, rate, draws, records))
    for stream, drawn in noise.items():
        tests += _law(stream, drawn)
    if noise:
        tests.append(_repeated(noise))
    level = FALSE_ALARM / max(len(tests), 1)
    return [Check(name, p >= level, detail, p) for name, detail, p in tests]


def _frequency(stream: str, rate: float, sizes: list[int], records: int) -> tuple[str, str, float]:
    total, number = sum(sizes), records * len(sizes)
    p = float(stats.binomtest(total, number, rate).pvalue)
    detail = f"{total} of {number} coins came up at rate {rate:.6g}"
    return f"{stream}: as many as the rate says", detail, p


def _spread(stream: str, rate: float, sizes: list[int], records: int) -> tuple[str, str, float]:
    """Batches of one size are not drawn by coins."""
    mean, variance = rate * records, rate * (1 - rate) * records
    statistic = float(sum((size - mean) ** 2 for size in sizes)) / variance
    # sizes are whole, so the lower tail comes in lumps: ten times as much, and no less than the
    # probability of the commonest size every time. The upper tail is heavier than a normal one's.
    low = max(float(stats.chi2.cdf(statistic, len(sizes))), _pmf(rate, records) ** len(sizes))
    high = float(stats.chi2.sf(statistic, len(sizes)))
    p = min(1.0, 10 * low, 1000 * high)
    detail = f"sizes {min(sizes)} to {max(sizes)}, {mean:.1f} ± {variance**0.5:.1f} expected"
    return f"{stream}: sizes vary as coins do", detail, p


def _by_record(
    stream: str, rate: float, draws: list[torch.Tensor], records: int
) -> tuple[str, str, float]:
    """Each record has luck of its own in every draw: its number of draws is binomial."""
    counts = torch.bincount(torch.cat(draws), minlength=records).double().numpy()
    times, spread = len(draws), rate * (1 - rate)
    squares = float(np.square(counts - times * rate).sum()) / (times * spread)
    # one record's term has mean 1 and this variance
    variance = 2 + (1 - 6 * spread) / (times * spread)
    z = (squares - records) / np.sqrt(records * variance)
    p = min(1.0, 1000 * 2 * float(stats.norm.sf(abs(z))))  # its tails are heavier than normal
    detail = f"a record came up {counts.min():g} to {counts.max():g} times in {times} draws"
    return f"{stream}: every record by itself", detail, p


def _repeated(noise: dict[str, list[torch.Tensor]]) -> tuple[str, str, float]:
    """Numbers that occur again, in any stream, up to sign: never by chance."""
    some = [one[:MOST_EACH] for drawn in noise.values() for one in drawn]
    values = torch.cat(some)[:MOST_COMPARED].double().abs().numpy()
    values.sort()
    again = int((np.diff(values) < NEAR * np.maximum(values[1:], 1e-3)).sum())
    # at most this many by chance, on average: density 0.8 at most, pairs, and the width of NEAR
    expected = 0.8 * len(values) ** 2 / 2 * NEAR
    p = float(stats.poisson.sf(again - 1, max(expected, 1e-12))) if again else 1.0
    return "all noise: no number twice", f"{again} of {len(values)} values occur again", p


def _pmf(rate: float, records: int) -> float:
    return float(stats.binom.pmf(int((records + 1) * rate), records, rate))


def _law(stream: str, drawn: list[torch.Tensor]) -> list[tuple[str, str, float]]:
    values = torch.cat(drawn)[:MOST_VALUES].double().numpy()
    tests = []
    detail = (
        f"{len(values)} values, standard deviation {values.std() if len(values) > 1 else 0:.4f}"
    )
    tests.append((f"{stream}: normal", detail, float(stats.kstest(values, "norm").pvalue)))
    squares = float(np.square(values).sum())
    tails = stats.chi2.cdf(squares, len(values)), stats.chi2.sf(squares, len(values))
    tests.append((f"{stream}: as large as it says", detail, min(1.0, 2 * float(min(tails)))))
    tests.append((f"{stream}: never used twice", f"{len(drawn)} draws", _independence(drawn)))
    return tests


def _independence(drawn: list[torch.Tensor]) -> float:
    """The smallest p-value of a correlation between two draws, times the number of pairs."""
    if len({len(one) for one in drawn}) != 1 or len(drawn) < 2:
        return 1.0
    if len(drawn[0]) < 8:  # single numbers: two that agree in every bit
        rows = {tuple(one.tolist()) for one in drawn}
        return 1.0 if len(rows) == len(drawn) else 0.0
    matrix = torch.stack(drawn)[:, :MOST_VALUES].double().numpy()
    above = np.triu_indices(len(matrix), 1)
    r = np.abs(np.corrcoef(matrix)[above])
    freedom = matrix.shape[1] - 2
    with np.errstate(divide="ignore"):
        t = r * np.sqrt(freedom / np.maximum(1 - r**2, 0))
    return min(1.0, 2 * len(r) * float(stats.t.sf(t.max(), freedom)))
