"""The methods the command line knows, and what it says about them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from reticent.errors import OptionError, one_of
from reticent.methods.base import Method
from reticent.methods.dpsgd import CLIPPING_STYLES, DPSGD, clipping_by_name


@dataclass(frozen=True)
class MethodOption:
    """One hyperparameter of a method."""

    name: str
    default: Any
    help: str


@dataclass(frozen=True)
class MethodCard:
    """What a user wants to know before choosing a method."""

    name: str
    title: str
    paper: str
    guarantee: str
    promise: str
    cost: str
    options: tuple[MethodOption, ...]
    build: Callable[..., Method]

    def to_json(self) -> dict[str, Any]:
        """The card as JSON-ready data."""
        card = {key: value for key, value in vars(self).items() if key != "build"}
        return {**card, "options": [asdict(option) for option in self.options]}


def _dpsgd(
    batch: int, clip: float = 1.0, clipping: str = "flat", noise: float | None = None
) -> DPSGD:
    return DPSGD(batch=batch, clip=clipping_by_name(clipping, clip), noise=noise)


_CARDS = {
    card.name: card
    for card in (
        MethodCard(
            name=DPSGD.name,
            title=DPSGD.title,
            paper=DPSGD.paper,
            guarantee=DPSGD.guarantee,
            promise=(
                "(ε, δ)-differential privacy for adding or removing one record; each release is a "
                "Poisson-sampled Gaussian mechanism of rate batch/n and multiplier noise"
            ),
            cost="per release: one clipped sum of gradients over about `batch` records",
            options=(
                MethodOption("batch", None, "expected number of records in a release"),
                MethodOption("clip", 1.0, "bound on the norm of one record's gradient"),
                MethodOption("clipping", "flat", f"one of {', '.join(CLIPPING_STYLES)}"),
                MethodOption("noise", None, "noise multiplier; set from epsilon and steps if left"),
            ),
            build=_dpsgd,
        ),
    )
}


def names() -> tuple[str, ...]:
    """The names that `build` and `describe` take."""
    return tuple(_CARDS)


def describe(name: str) -> MethodCard:
    """What there is to know about a method."""
    return _CARDS[one_of("method", name, _CARDS)]


def build(name: str, **options: Any) -> Method:
    """A method from plain options, as a configuration file or the command line gives them."""
    card = describe(name)
    known = {option.name for option in card.options}
    for option, value in options.items():
        if option not in known:
            raise OptionError(option, value, f"is not an option of {name}: {', '.join(known)}")
    return card.build(**options)
