"""Budgets, charges, the ledger and noise: where ε comes from."""

from reticent.privacy.accountants import Bill
from reticent.privacy.budget import Budget, delta_note
from reticent.privacy.calibration import (
    check_failures,
    filter_order_for,
    noise_for,
    noise_for_plan,
    order_for_most,
    steps_for,
)
from reticent.privacy.charges import Charge, NonPrivate, SampledGaussian
from reticent.privacy.ledger import Entry, Ledger
from reticent.privacy.noise import Sensitive, noisy
from reticent.privacy.pure import SampledPure, noisy_min
from reticent.privacy.selective import SelectiveGaussian, trials_for
from reticent.privacy.statements import ACCOUNTANTS, Statement

__all__ = [
    "ACCOUNTANTS",
    "Bill",
    "Budget",
    "Charge",
    "Entry",
    "Ledger",
    "NonPrivate",
    "SampledGaussian",
    "SampledPure",
    "SelectiveGaussian",
    "Sensitive",
    "Statement",
    "check_failures",
    "delta_note",
    "filter_order_for",
    "noise_for",
    "noise_for_plan",
    "noisy",
    "noisy_min",
    "order_for_most",
    "steps_for",
    "trials_for",
]
