"""What the DPSUR paper claims its releases cost: for comparison, not a guarantee.

Theorem 5.6 charges an accepted update as one sampled Gaussian for the gradient and one for the
test, as if the update that passed had the law of any update. It has that law tilted by the
probability of passing, and there are losses for which the true ε is larger (docs/selection.md has
one). So nothing here can be chosen as the accountant of a ledger.
"""

from __future__ import annotations

import math

import numpy as np

from reticent.privacy.accountants import rdp_to_epsilon
from reticent.privacy.charges import SampledGaussian
from reticent.privacy.selective import SelectiveGaussian

# those of the authors' code
ORDERS = (
    *(1 + x / 10 for x in range(1, 100)),
    *(float(x) for x in range(11, 64)),
    *(128.0, 256.0, 512.0),
)


def _curve(charge: SelectiveGaussian) -> np.ndarray:
    train = SampledGaussian(charge.rate, charge.multiplier)  # Theorem 5.1
    test = SampledGaussian(charge.valid_rate, charge.valid_noise)  # Theorem 5.5
    return np.asarray(train.rdp(ORDERS) + test.rdp(ORDERS))


def paper_epsilon(charge: SelectiveGaussian, count: int, delta: float) -> float:
    """The claimed ε of `count` accepted updates (Theorem 5.6, Equation 26); not a guarantee."""
    if count == 0:
        return 0.0
    pairs = zip(ORDERS, count * _curve(charge), strict=True)
    return min(rdp_to_epsilon(order, float(value), delta) for order, value in pairs)


def paper_steps(charge: SelectiveGaussian, epsilon: float, delta: float) -> int:
    """The most accepted updates whose claimed ε is within `epsilon`."""
    curve = _curve(charge)
    free = [
        epsilon - math.log1p(-1 / order) + math.log(delta * order) / (order - 1) for order in ORDERS
    ]
    return max(0, *(math.floor(f / d) for f, d in zip(free, curve, strict=True) if d > 0))
