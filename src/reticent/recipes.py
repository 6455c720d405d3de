"""Where to start on each data set: settings that work, each open to change by file or flag.

Those for `digits` and `fashion-mnist` were chosen by a search on a part of the training split that
was held out for it (`benchmarks/recipes.py`); the others are first guesses from the papers.
"""

from __future__ import annotations

from typing import Any

from reticent.reproduction import DPSUR_TABLE_2

# Anything not named here has the default of `Settings`.
RECIPES: dict[str, dict[str, Any]] = {
    "digits": {
        "model": "digits-cnn",
        "batch": 625,
        "clip": 1.0,
        "steps": 80,
        "lr": 3.0,
        "average": 0.95,
    },
    "mnist": {
        "model": "mnist-cnn",
        "activation": "tanh",
        "batch": 2048,
        "clip": 0.1,
        "epochs": 60,
        "lr": 4.0,
        "momentum": 0.9,
        "average": 0.997,
    },
    "fashion-mnist": {
        "model": "mnist-cnn",
        "activation": "tanh",
        "batch": 2048,
        "clip": 0.1,
        "epochs": 60,
        "lr": 4.0,
        "momentum": 0.9,
        "average": 0.997,
    },
    "cifar10": {
        "model": "cifar-cnn",
        "activation": "tanh",
        "batch": 4096,
        "clip": 0.1,
        "epochs": 50,
        "lr": 2.0,
        "momentum": 0.9,
        "average": 0.99,
    },
    "cifar100": {
        "model": "wrn-16-4",
        "batch": 4096,
        "clip": 1.0,
        "epochs": 50,
        "lr": 2.0,
        "average": 0.99,
    },
    "purchase100": {
        "model": "mlp",
        "activation": "tanh",
        "batch": 2048,
        "clip": 1.0,
        "epochs": 40,
        "lr": 1.0,
        "average": 0.99,
    },
    "imdb": {
        "model": "imdb-bilstm",
        "batch": 512,
        "clip": 1.0,
        "epochs": 20,
        "optimizer": "adam",
        "lr": 0.003,
        "average": 0.99,
    },
}

# What changes when the inputs are features; first guesses (scattering: after Tramèr & Boneh 2021).
FEATURES: dict[str, dict[str, dict[str, Any]]] = {
    "scattering": {
        "digits": {"model": "scatter-linear"},
        "mnist": {"model": "scatter-cnn"},
        "fashion-mnist": {"model": "scatter-cnn"},
        "cifar10": {"model": "scatter-cnn", "batch": 8192, "lr": 4.0},
        "cifar100": {"model": "scatter-cnn", "batch": 8192, "lr": 4.0},
    },
    "word-vectors": {
        "imdb": {"model": "linear", "batch": 1024},
    },
}


# What changes for DPSUR. Where the paper has settings, its noise; the budget then decides how many
# updates there are.
SELECTION: dict[str, dict[str, Any]] = {
    "digits": {"noise": 3.0, "valid_batch": 64, "valid_noise": 1.3, "bound": 0.01},
}
# What changes where every weight moves by the learning rate, whatever its gradient; first guesses.
SIGNS: dict[str, Any] = {"optimizer": "sgd", "momentum": 0.0, "lr": 0.01}
# What changes for DPIS: its Table 2, and on `digits` a batch that can be drawn k times over.
IMPORTANCE: dict[str, dict[str, Any]] = {
    "digits": {"batch": 128, "steps": 60, "method_options": {"k": 3.0}},
    "fashion-mnist": {"method_options": {"divider": 1.0}},
    "imdb": {"method_options": {"k": 3.0, "adapt": True}},
}
# What changes where the noise falls; first guesses. Accounting takes time for every stage.
DECAY: dict[str, dict[str, Any]] = {
    "digits": {"method_options": {"rate": 0.05, "stage": 10}},
}
# What changes where the method chooses its steps, in units of the learning rate; first guesses.
ADAPTIVE: dict[str, Any] = {"optimizer": "sgd", "momentum": 0.0, "lr": 1.0}
ADAPTIVE_BY_DATA: dict[str, dict[str, Any]] = {
    "digits": {
        "steps": 40,
        "average": None,
        "method_options": {"candidates": 10, "objective_bound": 2.0},
    },
}
_PUBLISHED_SELECTION = ("noise", "valid_noise", "valid_batch", "batch")


def recipe_for(
    data: str, features: str = "none", method: str = "dpsgd", epsilon: float = 3.0
) -> dict[str, Any]:
    """Where to start on a data set, given as it is or as features."""
    recipe = dict(RECIPES.get(data, {}))
    recipe |= FEATURES.get(features, {}).get(data, {})
    if method == "dpsur":
        if data in DPSUR_TABLE_2:
            published = DPSUR_TABLE_2[data].at(epsilon)
            recipe |= {name: published[name] for name in _PUBLISHED_SELECTION}
        recipe |= SELECTION.get(data, {})
    if method == "dpis":
        recipe |= IMPORTANCE.get(data, {})
    if method in ("sign-sgd", "sign-adam"):
        recipe |= SIGNS
    if method == "noise-decay":
        recipe |= DECAY.get(data, {})
    if method == "dpagd":
        recipe |= ADAPTIVE | ADAPTIVE_BY_DATA.get(data, {})
    return recipe
