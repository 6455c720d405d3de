"""Membership inference attacks by name: who was trained on, from what a model says.

>>> NAMES
('population', 'reference', 'shadow-loss', 'likelihood-ratio', 'rmia', 'shadow', 'white-box')
>>> build("likelihood-ratio", online=False)
LikelihoodRatio(online=False, variance='auto')
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from reticent.audit.attacks.base import Attack, Scores
from reticent.audit.attacks.likelihood import LikelihoodRatio
from reticent.audit.attacks.population import Population, ShadowLoss
from reticent.audit.attacks.reference import Reference
from reticent.audit.attacks.rmia import RMIA
from reticent.audit.attacks.shadow import Shadow
from reticent.audit.attacks.whitebox import PartialWhiteBox
from reticent.errors import OptionError, one_of

_KINDS: tuple[type[Attack], ...] = (
    Population,
    Reference,
    ShadowLoss,
    LikelihoodRatio,
    RMIA,
    Shadow,
    PartialWhiteBox,
)
_BY_NAME = {kind.name: kind for kind in _KINDS}

NAMES = tuple(_BY_NAME)
"""The attacks, from those that need least to those that need most."""


@dataclass(frozen=True)
class AttackCard:
    """What a user wants to know of an attack; `options` are its options and their defaults."""

    name: str
    title: str
    paper: str
    needs: tuple[str, ...]
    options: dict[str, Any]
    summary: str

    def to_json(self) -> dict[str, Any]:
        """The card as JSON-ready data."""
        return {**vars(self), "needs": list(self.needs)}


def build(name: str, **options: Any) -> Attack:
    """The attack of that name; see `describe` for its options."""
    kind = _BY_NAME[one_of("attack", name, NAMES)]
    known = _options(kind)
    for option, value in options.items():
        if option not in known:
            works = ", ".join(known)
            raise OptionError(option, value, f"is no option of {name}, which takes {works}")
    return kind(**options)


def describe(name: str) -> AttackCard:
    """What an attack needs and takes.

    >>> describe("rmia").options
    {'online': True, 'gamma': 2.0, 'a': 0.3}
    """
    kind = _BY_NAME[one_of("attack", name, NAMES)]
    summary = (kind.__doc__ or "").splitlines()[0]
    needs = tuple(sorted(kind.needs))
    return AttackCard(kind.name, kind.title, kind.paper, needs, _options(kind), summary)


def _options(kind: type[Attack]) -> dict[str, Any]:
    return {field.name: field.default for field in fields(kind)}  # type: ignore[arg-type]


__all__ = [
    "NAMES",
    "RMIA",
    "Attack",
    "AttackCard",
    "LikelihoodRatio",
    "PartialWhiteBox",
    "Population",
    "Reference",
    "Scores",
    "Shadow",
    "ShadowLoss",
    "build",
    "describe",
]
