"""The methods the command line knows, and what it says about them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from reticent.errors import OptionError, one_of
from reticent.methods.base import Method
from reticent.methods.dpsgd import CLIPPING_STYLES, DPSGD, clipping_by_name
from reticent.methods.dpsur import DPSUR
from reticent.methods.sign import SignAdam, SignSGD


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


def _sign(kind: type[SignSGD] | type[SignAdam]) -> Callable[..., Method]:
    def build_sign(
        batch: int,
        clip: float = 1.0,
        clipping: str = "flat",
        noise: float | None = None,
        **rates: Any,
    ) -> Method:
        return kind(batch=batch, clip=clipping_by_name(clipping, clip), noise=noise, **rates)

    return build_sign


def _dpsur(
    batch: int,
    clip: float = 1.0,
    clipping: str = "flat",
    noise: float | None = None,
    **selection: Any,
) -> DPSUR:
    return DPSUR(batch=batch, clip=clipping_by_name(clipping, clip), noise=noise, **selection)


_CANDIDATE_OPTIONS = (
    MethodOption("batch", None, "expected number of records in a release"),
    MethodOption("clip", 1.0, "bound on the norm of one record's gradient"),
    MethodOption("clipping", "flat", f"one of {', '.join(CLIPPING_STYLES)}"),
    MethodOption("noise", None, "noise multiplier; set from epsilon and steps if left"),
)

_ONE_SUM = "per release: one clipped sum of gradients over about `batch` records"
_SAMPLED = (
    "(ε, δ)-differential privacy for adding or removing one record; each release is a "
    "Poisson-sampled Gaussian mechanism of rate batch/n and multiplier noise"
)

_CARDS = {
    card.name: card
    for card in (
        MethodCard(
            name=DPSGD.name,
            title=DPSGD.title,
            paper=DPSGD.paper,
            guarantee=DPSGD.guarantee,
            promise=_SAMPLED,
            cost=_ONE_SUM,
            options=_CANDIDATE_OPTIONS,
            build=_dpsgd,
        ),
        MethodCard(
            name=SignSGD.name,
            title=SignSGD.title,
            paper=SignSGD.paper,
            guarantee=SignSGD.guarantee,
            promise=f"{_SAMPLED}; signs are taken of what was released",
            cost=_ONE_SUM,
            options=(
                *_CANDIDATE_OPTIONS,
                MethodOption("momentum", 0.0, "sign of an average of noisy gradients (Signum)"),
            ),
            build=_sign(SignSGD),
        ),
        MethodCard(
            name=SignAdam.name,
            title=SignAdam.title,
            paper=SignAdam.paper,
            guarantee=SignAdam.guarantee,
            promise=f"{_SAMPLED}; signs and moments are taken of what was released",
            cost=_ONE_SUM,
            options=(
                *_CANDIDATE_OPTIONS,
                MethodOption("beta1", 0.9, "decay of the first moment"),
                MethodOption("beta2", 0.999, "decay of the second moment"),
                MethodOption("eps", 1e-8, "added to the root of the second moment"),
            ),
            build=_sign(SignAdam),
        ),
        MethodCard(
            name=DPSUR.name,
            title=DPSUR.title,
            paper=DPSUR.paper,
            guarantee=DPSUR.guarantee,
            promise=(
                "(ε, δ)-differential privacy for adding or removing one record; each accepted "
                "update is a selected Gaussian release, which costs more than the paper charges "
                "(docs/selection.md); the number of trials is not released"
            ),
            cost=(
                "per trial: one clipped sum of gradients over about `batch` records and two forward"
                " passes over about `valid_batch`; a few trials per release"
            ),
            options=(
                *_CANDIDATE_OPTIONS,
                MethodOption("valid_batch", 256, "expected number of records in a test (B_v)"),
                MethodOption("valid_noise", 1.3, "noise multiplier of the test (sigma_v)"),
                MethodOption("bound", 0.001, "bound on the change of the loss (C_v)"),
                MethodOption("beta", -1.0, "a candidate passes below beta times the bound"),
                MethodOption(
                    "trials", None, "break off after so many; by default never, in effect"
                ),
                MethodOption("together", None, "candidates computed in one pass; speed only"),
                MethodOption("pad", None, "make trials up to a multiple of this, against timing"),
            ),
            build=_dpsur,
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
