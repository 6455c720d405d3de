"""Budgets, charges, the ledger and noise: where ε comes from."""

from reticent.privacy.accountants import ACCOUNTANTS
from reticent.privacy.budget import Budget
from reticent.privacy.calibration import filter_order_for, noise_for, steps_for
from reticent.privacy.charges import Charge, NonPrivate, SampledGaussian
from reticent.privacy.ledger import Entry, Ledger, Statement
from reticent.privacy.noise import noisy

__all__ = [
    "ACCOUNTANTS",
    "Budget",
    "Charge",
    "Entry",
    "Ledger",
    "NonPrivate",
    "SampledGaussian",
    "Statement",
    "filter_order_for",
    "noise_for",
    "noisy",
    "steps_for",
]
