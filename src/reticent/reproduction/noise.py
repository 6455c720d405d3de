"""How much noise a method adds, epoch by epoch, to keep within a budget (DPIS, Figure 1).

Noise multipliers follow from public numbers and an accountant, except DPIS's σ_G, which follows
from noisy sums of gradient norms that the run releases. Those are either taken from a training, or
given as shares of their largest value.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from reticent import data as datasets
from reticent.cli.building import budget_of, build_method, build_training
from reticent.cli.settings import Settings
from reticent.errors import OptionError, between, one_of, positive, whole
from reticent.methods import DPIS, Method, NoiseDecay
from reticent.methods.base import bill_of
from reticent.methods.importance import Iterations, noise_within
from reticent.privacy import Bill, Budget, Charge, Ledger, noise_for_plan

OPTIONS = ("accountant", "shares")
# The filter has the last word; a plan that fills it to the last bit would fail by rounding.
SPARE = 1 - 1e-9


def compute(
    settings: Settings, options: Mapping[str, Any], device: str
) -> dict[str, float | list[float]]:
    """The noise multiplier of every epoch (`noise`), and of the first and the last one.

    Args:
        settings: Of a training with an ε; its noise is what is computed.
        options: `accountant` ("rdp" or "pld"; by default the tightest) for methods whose noise is
            planned; `shares` for DPIS, the sums of norms as shares of their largest value, one for
            each epoch, the last of them for those that follow. Without it DPIS is trained.
        device: Where, if anything is trained.

    Example:
        >>> found = compute(Settings(data="mnist", epsilon=4, batch=6000, steps=20), {}, "cpu")
        >>> found["noise"]
        [0.9479, 0.9479]
    """
    for option in options:
        one_of("options", option, OPTIONS)
    budget = budget_of(settings)
    if budget is None:
        raise OptionError("method", settings.method, "keeps no budget, so it needs no noise")
    if settings.noise is not None:
        raise OptionError("noise", settings.noise, "is what is computed; leave it out")
    method = build_method(settings)
    n = whole("n", settings.n or datasets.lookup(settings.data).n_train)
    steps = _steps(settings, n)
    if isinstance(method, DPIS):
        if "accountant" in options:
            raise OptionError(
                "accountant", options["accountant"], "dpis spends by a filter; leave it out"
            )
        if "shares" not in options:
            return _trained(settings, device)
        return _told(importance_noise(method, budget, n, steps, options["shares"]))
    if "shares" in options:
        raise OptionError("shares", options["shares"], f"are of dpis, not of {method.name}")
    if method.adaptive:
        raise OptionError("method", method.name, "sets its noise as it goes; train it instead")
    return _told(planned_noise(method, budget, n, steps, options.get("accountant")))


def planned_noise(
    method: Method, budget: Budget, n: int, steps: int, accountant: str | None = None
) -> list[float]:
    """Noise multipliers by epoch of a method that fixes them before the run."""

    def bill_at(noise: float) -> Bill:
        return bill_of(_with(method, noise).stages(n, steps))

    if accountant is None:
        method = method.calibrated(budget, n, steps, Ledger(budget))
    else:
        one_of("accountant", accountant, ("rdp", "pld"))
        found = noise_for_plan(budget, bill_at, ledger=Ledger(budget), accountant=accountant)
        method = _with(method, found)
    length = max(round(n / _batch(method)), 1)
    begins = range(0, steps, length)
    if isinstance(method, NoiseDecay):
        return [method.multiplier(begin, n) for begin in begins]
    return [float(getattr(method, "noise")) for _ in begins]  # noqa: B009


def importance_noise(
    method: DPIS, budget: Budget, n: int, steps: int, shares: float | Sequence[float]
) -> list[float]:
    """σ_G by epoch that DPIS affords if its sums of norms are these shares of ÑC (section 4.2).

    What Ñ and the sums cost is paid first, as in a run; Ñ is taken to be n.
    """
    ledger = Ledger(budget)
    method = method.calibrated(budget, n, steps, ledger)
    assert ledger.filter_order is not None
    priced = [line for price, _ in method.stages(n, steps) for line in price]
    for charge in _for("number of records", priced):
        ledger.charge(charge, "number of records", adaptive=True)
    per_epoch = _for("sum of norms", priced)  # K̃, and K̃* where the bound adapts
    length, rate = method.epoch(n), method.batch / n
    epochs = -(-steps // length)
    one = sum(float(charge.rdp((ledger.filter_order,))[0]) for charge in per_epoch)
    outer = one - float(per_epoch[0].rdp((ledger.filter_order,))[0])
    found = []
    for epoch in range(epochs):
        share = method.clamped(_share(shares, epoch) * n, 1.0, n) / n
        ledger.charge(per_epoch[0], "sum of norms", adaptive=True)
        left = steps - epoch * length
        now = min(length, left)
        later = 1.0 if epoch < method.divider * epochs else share
        reserved = (epochs - epoch - 1) * one + (outer if left > now else 0.0)
        plan = [Iterations(now, rate, share), Iterations(left - now, rate, later)]
        room = ledger.divergence_left() * SPARE - reserved
        noise = noise_within(room, ledger.filter_order, plan)
        ledger.charge(plan[0].charge(noise), "training", count=now, adaptive=True)
        if left > now:
            for charge in per_epoch[1:]:
                ledger.charge(charge, "sum of norms", adaptive=True)
        found.append(noise)
    return found


def _for(purpose: str, priced: Sequence[tuple[Charge, str]]) -> list[Charge]:
    return [charge for charge, what in priced if what == purpose]


def _share(shares: float | Sequence[float], epoch: int) -> float:
    given = [shares] if isinstance(shares, (int, float)) else list(shares)
    if not given:
        raise OptionError("shares", given, "must hold at least one number")
    return between("shares", given[min(epoch, len(given) - 1)], 0, 1, open_low=True)


def _trained(settings: Settings, device: str) -> dict[str, float | list[float]]:
    """The noise of a DPIS training, and the shares it follows."""
    with tempfile.TemporaryDirectory() as folder:
        training = build_training(
            replace(settings, device=device),
            folder=Path(folder),
            resume=False,
            coins=None,
            overwrite=True,
        )
        released = training.finish().released
    size, epochs = released["size"], released["epochs"]
    shares = [line["sum"] / (size * line["clip"]) for line in epochs]
    return {**_told([line["noise"] for line in epochs]), "shares": shares}


def _told(noise: list[float]) -> dict[str, float | list[float]]:
    return {"noise": noise, "first": noise[0], "last": noise[-1]}


def _steps(settings: Settings, n: int) -> int:
    if settings.steps is not None:
        return whole("steps", settings.steps)
    if settings.epochs is None:
        raise OptionError("epochs", None, "give steps or epochs: noise depends on the length")
    return max(round(positive("epochs", settings.epochs) * n / settings.batch), 1)


def _with(method: Method, noise: float) -> Method:
    values: dict[str, Any] = {"noise": noise}
    return replace(method, **values)


def _batch(method: Method) -> int:
    batch: int = getattr(method, "batch")  # noqa: B009
    return batch
