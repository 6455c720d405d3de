"""What a run guarantees, and what not, in sentences that are exactly true.

A bound is given as a bound, rounded up; what no bound covers is said.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

from reticent.report.markup import clean
from reticent.training.result import MODEL_FILE

PERCENT = "\N{NO-BREAK SPACE}%"
UNIT = "one record: one input with its label"


@dataclass(frozen=True)
class Guarantee:
    """A guarantee in words.

    Attributes:
        kind: What `run.json` calls it.
        title: A few words.
        numbers: The numbers to quote, by name.
        sentence: What is guaranteed, formally.
        plain: What that means, one paragraph each.
    """

    kind: str
    title: str
    numbers: tuple[tuple[str, str], ...]
    sentence: str
    plain: tuple[str, ...]


def epsilon_text(value: float | None) -> str:
    """ε rounded up, since a bound that is rounded down is none.

    >>> epsilon_text(2.99951)
    '2.9996'
    """
    if value is None or not math.isfinite(value):
        return "no bound"
    return f"{math.ceil(value * 1e4 - 1e-9) / 1e4:.4f}"


def delta_text(value: float) -> str:
    """δ as people write it.

    >>> delta_text(1e-05)
    '1e-5'
    """
    return re.sub(r"e([-+])0+(?=\d)", r"e\1", f"{value:g}")


def number(value: Any, digits: int = 4) -> str:
    """A number for people; what is none, as it is."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return clean(value)
    if isinstance(value, int) or (value.is_integer() and abs(value) < 1e15):
        return f"{int(value):,}"
    return re.sub(r"e([-+])0+(?=\d)", r"e\1", f"{value:.{digits}g}")


def most_found(epsilon: float, delta: float, accused: float) -> float:
    """The largest share of members any test finds if it accuses this share of non-members.

    Kairouz, Oh, Viswanath 2015, Theorem 2.1 in the form of an ROC curve.

    >>> round(most_found(0.0, 0.0, 0.01), 6)
    0.01
    """
    bounded = min(epsilon, 700.0)
    return min(
        math.exp(bounded) * accused + delta,
        1 - math.exp(-bounded) * (1 - accused - delta),
        1.0,
    )


def most_right(epsilon: float, delta: float) -> float:
    """The largest share of right guesses whether a record was used, at even odds beforehand."""
    return min((1 + delta * math.exp(-epsilon)) / (1 + math.exp(-epsilon)), 1.0)


def up(share: float, digits: int = 1) -> str:
    """A share in percent, rounded up.

    >>> up(0.95258).replace(PERCENT, " %")
    '95.3 %'
    """
    scale = 10**digits
    return f"{min(math.ceil(share * 100 * scale - 1e-9) / scale, 100):.{digits}f}{PERCENT}"


def guarantee(run: dict[str, Any]) -> Guarantee:
    """What this run guarantees."""
    kind, statement = str(run["guarantee"]), run["statement"]
    epsilon = statement.get("epsilon")
    if kind == "differential-privacy" and epsilon is not None:
        return _private(float(epsilon), float(statement["delta"]), str(statement["accountant"]))
    if kind == "plausible-deniability":
        return _deniable(run.get("released") or {})
    if kind == "empirical":
        return Guarantee(
            kind,
            "No proven guarantee",
            (("ε", "none"),),
            "Nothing is proved about what this model reveals of its training records.",
            (
                "The training was changed so that certain known attacks on the membership of a "
                "record succeed less often. How a model resists an attack that was tried says "
                "nothing about attacks that were not. Treat the model as you would treat the "
                "records.",
            ),
        )
    return Guarantee(
        "none",
        "No guarantee",
        (("ε", "none"),),
        "This training gives no privacy guarantee.",
        (
            "The model may reveal any of its training records, in whole or in part. Treat it as "
            "you would treat the records.",
        ),
    )


def _private(epsilon: float, delta: float, accountant: str) -> Guarantee:
    found = most_found(epsilon, delta, 0.01)
    factor = math.exp(min(epsilon, 700.0))
    shown = f"{math.ceil(factor * 100 - 1e-9) / 100:,.2f}" if factor < 1e4 else f"{factor:.1e}"
    plain = [
        "Compare two worlds: in one the training used a given record, in the other everything was "
        "the same but for that record. Whatever somebody sees in the model, it is at most "
        f"e^ε = {shown} times as likely in one world as in the other, up to an additional "
        f"probability of δ = {delta_text(delta)}. So the odds that a record was used, as anyone "
        f"may have estimated them beforehand, move by at most a factor of {shown} in "
        "either direction, up to that δ.",
        f"A test that wrongly accuses at most 1{PERCENT} of the records that were not used finds "
        f"at most {up(found)} of those that were. Somebody who guesses whether a record was used, "
        f"at even odds, is right in at most {up(most_right(epsilon, delta))} of all cases. Both "
        "hold for every method of attack, any computing power and any other knowledge.",
    ]
    if found >= 0.99:
        plain.append(
            "At this ε the bound is so wide that, by itself, it protects hardly anything: what "
            "the model really reveals may be less, but that is not proved."
        )
    return Guarantee(
        "differential-privacy",
        "Differential privacy",
        (("ε at most", epsilon_text(epsilon)), ("δ", delta_text(delta))),
        f"The training that made this model was (ε, δ)-differentially private with ε = "
        f"{epsilon_text(epsilon)} and δ = {delta_text(delta)}, for data sets that differ by one "
        f"record added or removed. The unit of privacy is {UNIT}. The bound was computed by "
        f"the accountant “{accountant}” from the run’s ledger, and can be "
        "recomputed from it.",
        tuple(plain),
    )


def _deniable(released: dict[str, Any]) -> Guarantee:
    certificate = released.get("certificate") or {}
    limits = [limit for limit in certificate.get("limits", ()) if limit.get("update") is not None]
    numbers = [("ε", "none")]
    if "threshold" in certificate and "batches" in certificate:
        numbers.append(
            ("plausible batches", f"{certificate['threshold']} of {certificate['batches']}")
        )
    plain = [
        f"An update that lies farther than {number(math.sqrt(float(limit['update'])))} (Euclidean "
        "distance between gradients) from the gradients of all other batches passed with "
        f"probability at most {number(limit['probability'])}."
        for limit in limits
    ]
    plain.append(
        "This is about one update at a time. Nothing is promised about the model as a whole or "
        "about many updates together, nothing if anyone saw more of the training than the final "
        "model, and there is no ε: no bound on what the model reveals about a record follows."
    )
    return Guarantee(
        "plausible-deniability",
        "Plausible deniability of each update; no ε",
        tuple(numbers),
        "Each update of this training was released only if, for enough other batches of records, "
        "it might as well have come from them. This is not differential privacy.",
        tuple(plain),
    )


def not_the_model(trouble: str) -> str:
    """What to say where the model's file is not the one that the run wrote."""
    return (
        f"{MODEL_FILE} {trouble}. What is said here is about the model that this run released, not "
        "about what lies in this folder."
    )


@dataclass(frozen=True)
class Limit:
    """One thing that a guarantee does not cover: a name and a sentence."""

    name: str
    text: str


def not_covered(run: dict[str, Any], settings: dict[str, Any]) -> tuple[Limit, ...]:
    """What ε does not cover, as far as it applies to every run and to this one."""
    limits = [
        Limit(
            "Several records of one person.",
            "The unit is the record. For a person with k records ε is k times as large, and δ "
            "grows even faster.",
        ),
        Limit(
            "Other runs on the same records.",
            "Each run spends its own ε, and they add up. That includes runs whose models were "
            "thrown away.",
        ),
        Limit(
            "The search for settings.",
            "If settings were chosen by trying them on these records, what those trials cost is "
            "not in this ledger.",
        ),
        Limit(
            "Held-out records.",
            "ε is about training records. The results below were computed from the held-out ones "
            "without noise.",
        ),
        Limit(
            "What is true of everybody.",
            "A model that learns that smoking causes cancer says so about every smoker, whether "
            "in the data or not. Differential privacy does not prevent that.",
        ),
        Limit(
            "What was done outside the training.",
            "Preparing, selecting or describing the records by looking at them, the time the "
            "training took, and error messages are not in the ledger.",
        ),
    ]
    if settings.get("features") not in (None, "none"):
        limits.append(
            Limit(
                "Features.",
                f"The inputs went through fixed features ({clean(settings['features'])}), which "
                "are taken to owe nothing to these records.",
            )
        )
    return tuple(limits)
