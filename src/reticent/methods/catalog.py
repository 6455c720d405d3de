"""The methods the command line knows, and what it says about them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from reticent.errors import OptionError, meant, one_of
from reticent.methods.advreg import AdvReg
from reticent.methods.base import Method
from reticent.methods.decay import NoiseDecay
from reticent.methods.dpagd import DPAGD
from reticent.methods.dpis import DPIS
from reticent.methods.dpsgd import CLIPPING_STYLES, DPSGD, clipping_by_name
from reticent.methods.dpsur import DPSUR
from reticent.methods.pdsgd import PDSGD, PRESETS
from reticent.methods.plain import SGD
from reticent.methods.schedules import SHAPES, Scheduled
from reticent.methods.selena import Selena
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


def _clipping(kind: Callable[..., Method]) -> Callable[..., Method]:
    """A method from options, its clipping given by name or as a schedule."""

    def build_one(
        batch: int,
        clip: float = 1.0,
        clipping: str = "flat",
        noise: float | None = None,
        **own: Any,
    ) -> Method:
        moving = {name: own.pop(name) for name in tuple(own) if name in _CLIP_SCHEDULE_NAMES}
        style = _scheduled(clip, clipping, moving) if moving else clipping_by_name(clipping, clip)
        return kind(batch=batch, clip=style, noise=noise, **own)

    return build_one


def _scheduled(clip: float, clipping: str, options: dict[str, Any]) -> Scheduled:
    name, value = next(iter(options.items()))
    if clipping != "flat":
        raise OptionError(name, value, f"is for flat clipping, not {clipping!r}")
    if "clip_schedule" not in options:
        raise OptionError(name, value, "means nothing without clip_schedule")
    try:
        own = {name.removeprefix("clip_"): value for name, value in options.items()}
        return Scheduled(initial=clip, **own)
    except OptionError as error:  # said by the name it was given under
        named = error.option if error.option == "clip" else f"clip_{error.option}"
        raise OptionError(named, error.value, error.hint) from None


def _deniable(batches: int, preset: str | None = None, **own: Any) -> PDSGD:
    """PD-SGD from options, some of them by the name of a published setting."""
    if preset is not None:
        return PDSGD.preset(preset, batches, **own)
    for name in ("sigma", "gamma"):
        if name not in own:
            raise OptionError(name, None, "must be given for pd-sgd, or a preset")
    return PDSGD(batches, **own)


_DENIABILITY_OPTIONS = (
    MethodOption("batches", None, "how many batches the records are split into (m)"),
    MethodOption("sigma", None, "standard deviation of the noise on a batch's gradient"),
    MethodOption("gamma", None, "largest difference of log-densities that is plausible"),
    MethodOption("threshold", 3, "plausible batches that an update takes, its own included (T)"),
    MethodOption("preset", None, f"a published setting: {', '.join(PRESETS)}"),
    MethodOption("test_only", False, "ablation: move by the gradient without its noise"),
    MethodOption("random_rejection", None, "ablation: no test, reject with this probability"),
    MethodOption("group", 1, "gradients computed in one pass; speed only"),
)

_ADVREG_OPTIONS = (
    MethodOption("batch", None, "members in a step, and as many of the reference set"),
    MethodOption("weight", 1.0, "how much the attack's gain counts beside the loss (λ)"),
    MethodOption("attack_steps", 5, "steps of the attack in a release (k)"),
    MethodOption("reference", 0.5, "share of the records set aside as non-members, not trained on"),
    MethodOption("warmup", 0, "releases before there is an attack"),
    MethodOption("attack_lr", 0.001, "Adam's step size for the attack"),
    MethodOption("width", None, "the attack's layers as a share of the published ones; by classes"),
)

_SELENA_OPTIONS = (
    MethodOption("batch", None, "records in a step, of the model and of each sub-model"),
    MethodOption("models", 25, "sub-models (K)"),
    MethodOption("excluded", 10, "sub-models that do not see a given record (L)"),
    MethodOption("share", 0.5, "share of the releases that train the sub-models"),
    MethodOption("split_steps", None, "their number instead"),
    MethodOption("split_lr", 0.1, "learning rate of the sub-models"),
    MethodOption("split_momentum", 0.9, "momentum of the sub-models"),
)

_CANDIDATE_OPTIONS = (
    MethodOption("batch", None, "expected number of records in a release"),
    MethodOption("clip", 1.0, "bound on the norm of one record's gradient"),
    MethodOption("clipping", "flat", f"one of {', '.join(CLIPPING_STYLES)}"),
    MethodOption("noise", None, "noise multiplier; set from epsilon and steps if left"),
)

_SCHEDULE_HELP = {
    "rate": "k of its formula; 0.01 exponential, 0.7 step, 2 polynomial, 0.05 time",
    "period": "stages between steps, or until a polynomial or line has ended",
    "end": "the share it never falls below",
    "stage": "releases per stage; an epoch's if left",
}
_SCHEDULE = tuple(
    MethodOption(name, default, _SCHEDULE_HELP[name])
    for name, default in (("rate", None), ("period", 10), ("end", 0.1), ("stage", None))
)
_CLIP_SCHEDULE = (
    MethodOption("clip_schedule", "constant", f"the bound falls: one of {', '.join(SHAPES)}"),
    *(MethodOption(f"clip_{o.name}", o.default, f"of clip_schedule: {o.help}") for o in _SCHEDULE),
)
_CLIP_SCHEDULE_NAMES = {option.name for option in _CLIP_SCHEDULE}

_AGD_OPTIONS = (
    MethodOption("objective_batch", None, "expected records that a choice looks at; as batch"),
    MethodOption("objective_bound", 3.0, "bound on one record's loss (C_obj)"),
    MethodOption("choice_epsilon", None, "ε of one choice of the step size; 1/noise"),
    MethodOption("gamma", 0.1, "growth of the gradient's budget after a failure (γ)"),
    MethodOption("candidates", 20, "how many step sizes, up to the longest"),
    MethodOption("longest", 2.0, "the longest step"),
    MethodOption("sizes", None, "a list of step sizes instead"),
    MethodOption("moves", None, "how far to move where each of sizes wins, if not by that size"),
    MethodOption("adapt", 10, "moves after which the longest step is set anew (τ); 0: never"),
    MethodOption("stretch", 0.1, "how far beyond the longest step taken (η)"),
    MethodOption("normalise", True, "directions of length 1"),
    MethodOption("share", 0.6, "share of the budget that the planned rounds take without failures"),
)

_DPIS_OPTIONS = (
    MethodOption("batch", None, "expected number of records that enter a release (b)"),
    MethodOption("clip", 1.0, "bound on the norm of one record's gradient, at first (C)"),
    MethodOption("k", 5.0, "records are drawn k times as often as they are kept"),
    MethodOption("least", 0.01, "share of the bound that every norm counts as at least (g_L)"),
    MethodOption("sum_noise", None, "noise on sums of norms, in units of C (σ_K); 0.02 n"),
    MethodOption("sum_rate", 1.0, "rate at which an epoch's first norms are summed (p_K)"),
    MethodOption("count_noise", None, "noise on the number of records (σ_N); 0.02 n; 0: public"),
    MethodOption("divider", 0.8, "share of epochs that save for the worst case (a_E)"),
    MethodOption("adapt", False, "let the bound follow the mean norm"),
    MethodOption("outer", None, "bound on norms for that (C*); 4 C"),
    MethodOption("quantile", 1.0, "the bound as a multiple of the mean norm (λ)"),
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
            options=(*_CANDIDATE_OPTIONS, *_CLIP_SCHEDULE),
            build=_clipping(DPSGD),
        ),
        MethodCard(
            name=NoiseDecay.name,
            title=NoiseDecay.title,
            paper=NoiseDecay.paper,
            guarantee=NoiseDecay.guarantee,
            promise=f"{_SAMPLED}·f(t), f a schedule fixed before the run",
            cost=_ONE_SUM,
            options=(
                *_CANDIDATE_OPTIONS,
                MethodOption("schedule", "exponential", f"f: one of {', '.join(SHAPES)}"),
                *_SCHEDULE,
                *_CLIP_SCHEDULE,
            ),
            build=_clipping(NoiseDecay),
        ),
        MethodCard(
            name=DPAGD.name,
            title=DPAGD.title,
            paper=DPAGD.paper,
            guarantee=DPAGD.guarantee,
            promise=(
                "(ε, δ)-differential privacy for adding or removing one record; each round is a "
                "Poisson-sampled Gaussian mechanism and a Poisson-sampled choice of pure privacy, "
                "failed rounds are paid too, and a filter keeps the budget"
            ),
            cost=(
                "per release: one clipped sum of gradients over about `batch` records and a forward"
                " pass over about `objective_batch` for each step size"
            ),
            options=(*_CANDIDATE_OPTIONS, *_AGD_OPTIONS),
            build=_clipping(DPAGD),
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
                *_CLIP_SCHEDULE,
                MethodOption("momentum", 0.0, "sign of an average of noisy gradients (Signum)"),
            ),
            build=_clipping(SignSGD),
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
                *_CLIP_SCHEDULE,
                MethodOption("beta1", 0.9, "decay of the first moment"),
                MethodOption("beta2", 0.999, "decay of the second moment"),
                MethodOption("eps", 1e-8, "added to the root of the second moment"),
            ),
            build=_clipping(SignAdam),
        ),
        MethodCard(
            name=DPIS.name,
            title=DPIS.title,
            paper=DPIS.paper,
            guarantee=DPIS.guarantee,
            promise=(
                "(ε, δ)-differential privacy for adding or removing one record; each iteration is a"
                " Poisson-sampled Gaussian mechanism of rate bC/K̃ and multiplier σ_G·ÑC/K̃, the sums"
                " K̃ are charged too, and a filter keeps the budget, since σ_G follows K̃"
            ),
            cost=(
                "per release: one clipped sum of gradients over about k times `batch` records; once"
                " an epoch the gradient norms of all records"
            ),
            options=_DPIS_OPTIONS,
            build=DPIS,
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
                *_CLIP_SCHEDULE,
            ),
            build=_clipping(DPSUR),
        ),
        MethodCard(
            name=PDSGD.name,
            title=PDSGD.title,
            paper=PDSGD.paper,
            guarantee=PDSGD.guarantee,
            promise=(
                "no ε; an update at squared distance d or more from the gradients of all other "
                "batches passes with probability at most (m - 1) q(d) / (T - 1), for those who see "
                "only the final model (`reticent deniability`)"
            ),
            cost=(
                "per release: the gradients of `threshold` to `batches` batches of n / batches "
                "records each"
            ),
            options=_DENIABILITY_OPTIONS,
            build=_deniable,
        ),
        MethodCard(
            name=AdvReg.name,
            title=AdvReg.title,
            paper=AdvReg.paper,
            guarantee=AdvReg.guarantee,
            promise="no ε; resists the attack it was trained against, and nothing is proved",
            cost=(
                "per release: the gradient of `batch` records, and a forward pass over 2 "
                "`attack_steps` `batch`"
            ),
            options=_ADVREG_OPTIONS,
            build=AdvReg,
        ),
        MethodCard(
            name=Selena.name,
            title=Selena.title,
            paper=Selena.paper,
            guarantee=Selena.guarantee,
            promise=(
                "no ε; every record is learned from models that never saw it, and nothing is proved"
            ),
            cost=(
                "per release: the gradients of `models` times `batch` records in the first phase, "
                "of `batch` in the second; memory for 2 `models` models"
            ),
            options=_SELENA_OPTIONS,
            build=Selena,
        ),
        MethodCard(
            name=SGD.name,
            title=SGD.title,
            paper=SGD.paper,
            guarantee=SGD.guarantee,
            promise="for comparison: neither clipping nor noise",
            cost="per release: the gradient of about `batch` records",
            options=(MethodOption("batch", None, "about how many records a step takes"),),
            build=SGD,
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
            raise not_an_option(name, option, value)
    return card.build(**options)


def not_an_option(name: str, option: str, value: Any) -> OptionError:
    """The error for an option that a method does not have: what it has, and which method has it."""
    takes = sorted(known.name for known in describe(name).options)
    others = [card.name for card in _CARDS.values() if option in {o.name for o in card.options}]
    whose = f"; it is for {', '.join(others)}" if others else ""
    works = f"{', '.join(takes)}{whose}{meant(option, takes)}"
    return OptionError(option, value, f"is not an option of {name}: {works}")
