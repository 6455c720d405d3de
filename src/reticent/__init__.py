"""Reticent: train PyTorch models on sensitive records, with an ε that holds up."""

from typing import TYPE_CHECKING, Any

from reticent import audit, data, features, gradients, methods, models, privacy, training
from reticent.classifier_fits import PrivacyWarning, spent_together
from reticent.coins import Coins
from reticent.errors import (
    AccountingError,
    BudgetError,
    CheckpointError,
    DataError,
    DivergenceWarning,
    ModelError,
    OptionError,
    ProbeWarning,
    ReticentError,
    TrialsExhaustedError,
)
from reticent.methods import (
    DPAGD,
    DPIS,
    DPSGD,
    DPSUR,
    PDSGD,
    SGD,
    AdvReg,
    Method,
    NoiseDecay,
    Quantile,
    Scheduled,
    Selena,
    SignAdam,
    SignSGD,
)
from reticent.privacy import Budget, Ledger
from reticent.training import (
    HeldOut,
    Result,
    Training,
    evaluate,
    load_weights,
    run,
    together_epsilon,
    train,
    train_many,
)

if TYPE_CHECKING:
    from reticent.classifier import PrivateClassifier

__version__ = "0.1.0"

__all__ = [
    "DPAGD",
    "DPIS",
    "DPSGD",
    "DPSUR",
    "PDSGD",
    "SGD",
    "AccountingError",
    "AdvReg",
    "Budget",
    "BudgetError",
    "CheckpointError",
    "Coins",
    "DataError",
    "DivergenceWarning",
    "HeldOut",
    "Ledger",
    "Method",
    "ModelError",
    "NoiseDecay",
    "OptionError",
    "PrivacyWarning",
    "PrivateClassifier",
    "ProbeWarning",
    "Quantile",
    "Result",
    "ReticentError",
    "Scheduled",
    "Selena",
    "SignAdam",
    "SignSGD",
    "Training",
    "TrialsExhaustedError",
    "audit",
    "data",
    "evaluate",
    "features",
    "gradients",
    "load_weights",
    "methods",
    "models",
    "privacy",
    "run",
    "spent_together",
    "together_epsilon",
    "train",
    "train_many",
    "training",
]


def __getattr__(name: str) -> Any:
    # here: scikit-learn takes longer to import than all of the library, and few runs need it
    if name == "PrivateClassifier":
        from reticent.classifier import PrivateClassifier

        return PrivateClassifier
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
