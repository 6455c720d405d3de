"""Where to start on each data set: settings that work, each open to change by file or flag.

Those for `digits` and `fashion-mnist` were chosen by a search on a part of the training split that
was held out for it (`benchmarks/recipes.py`); the others are first guesses from the papers.
"""

from __future__ import annotations

from typing import Any

from reticent.data import lookup
from reticent.data.own.starting import SAMPLING, STARTS, linear_start

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
        "model_options": {"inputs": "imagenet"},
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

# Data sets that start like another.
LIKE = {"imdb-first": "imdb"}
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
# Features that are rows of length 1, and the records of one's own whose start they share.
ROWS = {
    "random-images": "images",
    "image-encoder": "images",
    "word-clusters": "text",
    "sentence-encoder": "text",
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
# What changes where gradients are neither clipped nor summed with noise: smaller batches and steps.
# First guesses but for `digits`, which was tried by hand.
UNCLIPPED: dict[str, Any] = {"batch": 128, "epochs": 20, "average": None}
UNCLIPPED_SGD: dict[str, Any] = {"lr": 0.05, "momentum": 0.9}
UNCLIPPED_BY_DATA: dict[str, dict[str, Any]] = {
    "digits": {"batch": 64, "steps": 400, "epochs": None, "lr": 0.2, "momentum": 0.0},
}
# What changes for PD-SGD: σ, γ and T of the paper's Table 13 where it has them.
DENIABLE: dict[str, Any] = {
    "average": None,
    "epochs": None,
    "steps": 2000,
    "method_options": {"batches": 20, "sigma": 0.01, "gamma": 4000.0, "threshold": 3},
}
DENIABLE_BY_DATA: dict[str, dict[str, Any]] = {
    "digits": {
        "steps": 400,
        "lr": 0.1,
        "method_options": {"batches": 10, "sigma": 0.02, "gamma": 200.0, "threshold": 3},
    },
    "fashion-mnist": {
        "lr": 0.1,
        "method_options": {"batches": 20, "sigma": 0.01, "gamma": 300.0, "threshold": 3},
    },
    "cifar10": {"method_options": {"batches": 12, "preset": "cifar10-scratch-1"}},
    "cifar100": {"method_options": {"batches": 12, "preset": "cifar100-scratch-1"}},
    "purchase100": {"method_options": {"batches": 16, "preset": "purchase100-1"}},
}
# What changes for the empirical defences; first guesses but for `digits`.
DEFENDED: dict[str, dict[str, Any]] = {
    "advreg": {"batch": 128, "epochs": 4, "method_options": {"reference": 0.3}},
    "selena": {"batch": 128, "epochs": 4, "method_options": {}},
}
DEFENDED_BY_DATA: dict[tuple[str, str], dict[str, Any]] = {
    ("advreg", "digits"): {
        **{"batch": 64, "steps": 300, "epochs": None, "lr": 0.1},
        "method_options": {"reference": 0.3, "attack_steps": 3},
    },
    ("selena", "digits"): {
        **{"batch": 64, "steps": 500, "epochs": None, "lr": 0.3},
        "method_options": {"models": 10, "excluded": 4, "share": 0.4},
    },
}
_PUBLISHED_SELECTION = ("noise", "valid_noise", "valid_batch", "batch")


def recipe_for(
    data: str,
    features: str = "none",
    method: str = "dpsgd",
    epsilon: float = 3.0,
    delta: float = 1e-5,
    n: int | None = None,
) -> dict[str, Any]:
    """Where to start on a data set, given as it is or as features."""
    data = LIKE.get(data, data)
    recipe = dict(RECIPES.get(data, {}))
    on_features = FEATURES.get(features, {}).get(data, {})
    if "model" in on_features:
        recipe.pop("model_options", None)  # they belong to the other model
    recipe |= on_features
    if features in ROWS and data in RECIPES:
        n = n or lookup(data).n_train
        recipe = linear_start(STARTS[ROWS[features]], epsilon, delta, n)
        if method in SAMPLING:
            recipe = SAMPLING[method](recipe, n)
    elif method == "dpsur":
        from reticent.reproduction.published import dpsur_settings  # it reads settings, as we do

        recipe |= dpsur_settings(data, epsilon, _PUBLISHED_SELECTION)
        recipe |= SELECTION.get(data, {})
    if method == "dpis":
        recipe |= IMPORTANCE.get(data, {})
    if method in ("sign-sgd", "sign-adam"):
        recipe |= SIGNS
    if method == "noise-decay":
        recipe |= DECAY.get(data, {})
    if method == "dpagd":
        recipe |= ADAPTIVE | ADAPTIVE_BY_DATA.get(data, {})
    if method in ("sgd", "pd-sgd", *DEFENDED):
        recipe.pop("clip", None)
        recipe |= UNCLIPPED
        if recipe.get("optimizer", "sgd") == "sgd":
            recipe |= UNCLIPPED_SGD
        if method == "sgd":
            recipe |= UNCLIPPED_BY_DATA.get(data, {})
        elif method in DEFENDED:
            recipe |= DEFENDED[method] | DEFENDED_BY_DATA.get((method, data), {})
        else:
            recipe |= DENIABLE | DENIABLE_BY_DATA.get(data, {})
            del recipe["batch"]  # it has `batches`
    if features in ROWS and recipe.get("epochs") is not None:
        recipe.pop("steps", None)  # the method's recipe has a length of its own
    return recipe
