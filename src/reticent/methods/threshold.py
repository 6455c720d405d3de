"""How often DPSUR accepts a candidate, and what its threshold β has to do with it.

Fu et al. 2024 (DPSUR), Sections 3.2 and 3.3. A candidate's loss change ΔE is clipped to ±C_v, gets
noise of 2·C_v·σ_v (Equation 8) and is accepted below Z = β·C_v. In units of C_v, with c the clipped
change and Φ the standard normal distribution function,

    P(accept | c) = P(c + 2σ_v·N(0, 1) < β) = Φ((β − c) / 2σ_v).

C_v is gone. It is chosen so small that c is almost always −1 (the loss fell, a good candidate) or
1 (it rose, a bad one; Equation 10); these two are Equations (11) and (12), and every other change
lies between them. Everything here is a function of public numbers and costs no privacy.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from scipy.special import log_ndtr, ndtr

from reticent.errors import between, finite, positive

# Where Φ((β + 1)/2σ_v) − Φ((β − 1)/2σ_v) is largest, whatever σ_v is. Its derivative has the sign
# of φ((β + 1)/2σ_v) − φ((β − 1)/2σ_v), and φ falls with the distance from 0: that is positive where
# |β + 1| < |β − 1|, so for β < 0, and negative for β > 0. (Section 3.3 reads −1 off its Figure 6.)
BETA_OF_LARGEST_DIFFERENCE = 0.0


@dataclass(frozen=True)
class Threshold:
    """What a threshold does.

    Attributes:
        beta: The threshold, in units of C_v.
        good: Probability that a good candidate is accepted.
        bad: Probability that a bad candidate is accepted.
        difference: The first less the second.
        ratio: The first over the second: all that ε depends on, of β and σ_v. More costs more.
        good_among_accepted: Share of good candidates among the accepted; None if none can be.
        trials: Expected candidates for one that is accepted.
    """

    beta: float
    good: float
    bad: float
    difference: float
    ratio: float
    good_among_accepted: float | None
    trials: float

    def to_json(self) -> dict[str, Any]:
        """JSON-ready data; what is too large for a float is null."""
        row = asdict(self)
        return {key: None if value == math.inf else value for key, value in row.items()}


def acceptance(change: float, beta: float, valid_noise: float) -> float:
    """Probability that a candidate whose loss changes by `change`·C_v is accepted.

    The change is clipped to [−1, 1] first, as the method does (Equations 8 and 9).

    >>> round(acceptance(0.0, 0.0, 1.3), 3)
    0.5
    """
    clipped = min(max(finite("change", change), -1.0), 1.0)
    return float(ndtr(_score(clipped, beta, valid_noise)))


def good_acceptance(beta: float, valid_noise: float) -> float:
    """Probability that a good candidate is accepted: Φ((β + 1)/2σ_v), Equation (11).

    >>> good_acceptance(-1, 0.8), good_acceptance(-1, 1.3)  # a half at β = −1, whatever σ_v
    (0.5, 0.5)
    """
    return acceptance(-1, beta, valid_noise)


def bad_acceptance(beta: float, valid_noise: float) -> float:
    """Probability that a bad candidate is accepted: Φ((β − 1)/2σ_v), Equation (12).

    >>> round(bad_acceptance(-1, 1.0), 3)  # Section 3.2 has 15.9 %
    0.159
    """
    return acceptance(1, beta, valid_noise)


def difference(beta: float, valid_noise: float) -> float:
    """How much likelier a good candidate is accepted than a bad one; symmetric in β.

    >>> round(difference(0, 1.0), 3), round(difference(-1, 1.0), 3)
    (0.383, 0.341)
    """
    # from the lower tail: above 0 both may be close to 1 and their difference lost
    left = -abs(finite("beta", beta))
    return good_acceptance(left, valid_noise) - bad_acceptance(left, valid_noise)


def acceptance_ratio(beta: float, valid_noise: float) -> float:
    """How many times likelier a good candidate is accepted than a bad one; ∞ beyond a float.

    Equations (11) and (12) are the ends of the range that `privacy.SelectiveGaussian` charges for.
    Its ε depends on β and σ_v by this ratio alone, which grows as β falls and, up to β = 1, as σ_v
    falls.
    """
    bad = float(log_ndtr(_score(1, beta, valid_noise)))
    good = float(log_ndtr(_score(-1, beta, valid_noise)))
    exponent = good - bad if bad > -math.inf else math.inf
    return math.exp(exponent) if exponent < 709 else math.inf


def expected_trials(beta: float, valid_noise: float, good_share: float = 0.5) -> float:
    """Expected candidates for one that is accepted, where each is good with `good_share`.

    Trials until the first success are geometric: 1 / (g·(11) + (1 − g)·(12)). ∞ beyond a float.
    """
    share = between("good_share", good_share, 0, 1)
    accepted = share * good_acceptance(beta, valid_noise)
    accepted += (1 - share) * bad_acceptance(beta, valid_noise)
    return 1 / accepted if accepted > 0 else math.inf


def good_among_accepted(beta: float, valid_noise: float, good_share: float = 0.5) -> float | None:
    """Share of good candidates among the accepted ones, by Bayes; None if none can be accepted."""
    share = between("good_share", good_share, 0, 1)
    good = share * good_acceptance(beta, valid_noise)
    bad = (1 - share) * bad_acceptance(beta, valid_noise)
    return good / (good + bad) if good + bad > 0 else None


def thresholds(
    betas: Iterable[float], valid_noise: float, good_share: float = 0.5
) -> tuple[Threshold, ...]:
    """What each of `betas` does: acceptances, their difference and ratio, trials.

    Args:
        betas: Thresholds, in units of C_v.
        valid_noise: σ_v.
        good_share: Share of good candidates among all; a guess, since the true one is private.
    """
    return tuple(
        Threshold(
            beta=finite("beta", beta),
            good=good_acceptance(beta, valid_noise),
            bad=bad_acceptance(beta, valid_noise),
            difference=difference(beta, valid_noise),
            ratio=acceptance_ratio(beta, valid_noise),
            good_among_accepted=good_among_accepted(beta, valid_noise, good_share),
            trials=expected_trials(beta, valid_noise, good_share),
        )
        for beta in betas
    )


def _score(change: float, beta: float, valid_noise: float) -> float:
    """(β − c)/2σ_v."""
    return (finite("beta", beta) - change) / (2 * positive("valid_noise", valid_noise))
