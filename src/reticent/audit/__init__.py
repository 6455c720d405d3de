"""Audits: lower bounds that meet the ledger's upper bound, and tests that would catch a lie."""

from reticent.audit import attacks
from reticent.audit.books import BooksReport, check_books
from reticent.audit.canaries import CanaryReport, audit_canaries
from reticent.audit.comparisons import Leak
from reticent.audit.conduct import ConductReport, watch
from reticent.audit.membership import (
    Attacking,
    MembershipReport,
    attack_model,
    attack_procedure,
    attack_split,
)
from reticent.audit.metrics import Leakage, measure
from reticent.audit.replay import ReplayReport, replay
from reticent.audit.shadows import OneByOne, ShadowPlan, Shadows, train_shadows
from reticent.audit.signals import Evidence, Signals, query

__all__ = [
    "Attacking",
    "BooksReport",
    "CanaryReport",
    "ConductReport",
    "Evidence",
    "Leak",
    "Leakage",
    "MembershipReport",
    "OneByOne",
    "ReplayReport",
    "ShadowPlan",
    "Shadows",
    "Signals",
    "attack_model",
    "attack_procedure",
    "attack_split",
    "attacks",
    "audit_canaries",
    "check_books",
    "measure",
    "query",
    "replay",
    "train_shadows",
    "watch",
]
