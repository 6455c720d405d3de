"""Little noise means ratios that lie hundreds of decades apart: no mass may vanish between them."""

import math

import numpy as np
import pytest

from reticent.privacy import (
    Ledger,
    SampledGaussian,
    SelectiveGaussian,
    selective_tilts,
    trials_for,
)
from reticent.privacy.selective_tilts import dominating_pair, slices


@pytest.mark.parametrize("rate", [1e-5, 0.01, 0.064, 0.5, 1.0])
@pytest.mark.parametrize("multiplier", [0.02, 0.05, 0.07, 0.1, 0.12, 0.2, 0.5, 5.0])
def test_both_laws_keep_their_mass(rate, multiplier):
    ratios, log_weights, lost = dominating_pair(rate, multiplier, slices(rate, multiplier, 80))
    if lost == 1.0:
        assert multiplier < 0.07  # beyond what numbers can hold, and said so
        return
    weights = np.exp(log_weights)
    assert weights.sum() == pytest.approx(1, abs=2e-13)
    assert weights @ ratios + lost == pytest.approx(1, abs=2e-13)
    assert lost < 1e-12


@pytest.mark.parametrize(
    ("rate", "multiplier"),
    [(0.01, 0.02), (1.0, 0.05), (0.064, 0.08), (0.01, 0.1), (1.0, 0.15), (0.064, 0.4), (0.01, 0.2)],
)
def test_selection_never_costs_less_than_no_selection(rate, multiplier):
    """A test that all candidates pass alike is one of the tests there are."""
    selected = SelectiveGaussian(rate, multiplier, 0.05, 1.3, -1.0, trials_for(-1.0, 1.3))
    with_selection, without = Ledger(), Ledger()
    with_selection.charge(selected, "updates", count=3)
    without.charge(SampledGaussian(rate, multiplier), "updates", count=3)
    floor = without.epsilon(1e-5) * (1 - 2e-3)
    for accountant in ("selective-pld", "selective-rdp", None):
        assert with_selection.epsilon(1e-5, accountant) >= floor
    if multiplier >= 0.4:
        assert math.isfinite(with_selection.epsilon(1e-5))


@pytest.mark.parametrize("missing", [1e-9, 1e-4])
def test_mass_that_goes_missing_counts_as_lost(monkeypatch, missing):
    """Whatever may take it away: δ pays for it."""
    edges = slices(0.05, 2.0, 80)
    whole = dominating_pair(0.05, 2.0, edges)[2]
    original = selective_tilts._log_masses
    monkeypatch.setattr(
        selective_tilts, "_log_masses", lambda z: original(z) + math.log1p(-missing)
    )
    assert dominating_pair(0.05, 2.0, edges)[2] >= whole + 0.9 * missing
