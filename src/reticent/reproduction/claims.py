"""What an entry's ε is worth: the claim of the paper beside what can be proved.

Only DPSUR has variants. Its accepted updates cost more than its paper charges, and its public code
leaks (docs/selection.md), so the same entry can be run as published, with the same number of
updates but without the leaks, and with as many updates as the claimed ε really affords.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from typing import Any

from reticent.cli.building import budget_of, build_method
from reticent.cli.settings import Settings
from reticent.errors import OptionError, one_of
from reticent.features import standardising
from reticent.methods import DPSUR, Method
from reticent.methods.published import PublishedDPSUR
from reticent.privacy import Budget, Ledger, SelectiveGaussian
from reticent.privacy.selective_paper import paper_epsilon, paper_steps
from reticent.reproduction.tables import PUBLISHED, REPAIRED, SOUND, VARIANTS
from reticent.training.planning import plan


@dataclass(frozen=True)
class Planned:
    """What one variant trains.

    Attributes:
        settings: Of the training.
        method: What is trained with.
        claimed_epsilon: The ε of the paper's table; None where it has none.
        claim: What the paper's accounting says of DPSUR, to be recorded beside the result.
    """

    settings: Settings
    method: Method
    claimed_epsilon: float | None
    claim: dict[str, Any] = field(default_factory=dict)


@lru_cache(maxsize=1024)
def _calibrated(
    method: Method, budget: Budget, n: int, steps: int | None, epochs: float | None
) -> Method:
    """The method with its noise, as the training would find it: once for all seeds."""
    return plan(method, budget, n, steps, epochs, Ledger(budget))[0]


def planned(settings: Settings, variant: str, n: int) -> Planned:
    """Settings and method for one variant of an entry, trained on `n` records."""
    one_of("variant", variant, VARIANTS)
    method = build_method(settings)
    if settings.method != DPSUR.name:
        if variant != SOUND:
            raise OptionError("variant", variant, f"is for dpsur only, not {settings.method}")
        budget = budget_of(settings)
        if budget is None:
            return Planned(settings, method, None)
        if getattr(method, "noise", 0.0) is None and not (method.adaptive or settings.standardise):
            method = _calibrated(method, budget, n, settings.steps, settings.epochs)
        return Planned(settings, method, settings.epsilon)
    assert isinstance(method, DPSUR)
    batch = min(method.batch, n)
    charge = replace(method, batch=batch).price(n)[0][0]
    assert isinstance(charge, SelectiveGaussian)
    epsilon, delta = settings.epsilon, settings.delta
    steps = paper_steps(charge, epsilon, delta)
    claim = {
        "variant": variant,
        "claimed_epsilon": paper_epsilon(charge, steps, delta),
        "claimed_steps": steps,
        "accountant": "paper",
        "guarantee": "none",
    }
    if variant == SOUND:
        return Planned(settings, method, epsilon, claim)
    ledger = Ledger()
    if settings.standardise:
        given = settings.standardise_noise
        ledger.pay(standardising.price(standardising.NOISE if given is None else given))
    ledger.charge(charge, "accepted updates", count=steps)
    claim["sound_epsilon"] = sound = ledger.epsilon(delta)
    if variant == PUBLISHED:
        same = {item.name: getattr(method, item.name) for item in fields(method)}
        settings = replace(settings, steps=steps, epochs=None, non_private=True)
        return Planned(settings, PublishedDPSUR(**same), epsilon, claim)
    assert variant == REPAIRED
    # what those updates really cost, with a little room for rounding
    enough = round(sound + 5e-5, 4)
    settings = replace(settings, steps=steps, epochs=None, epsilon=enough)
    return Planned(settings, method, epsilon, claim)
