"""The best honest recipe known for a data set: public features, then a private linear layer.

Found by `benchmarks/search.py` on held-out training records and written by `benchmarks/best.py`;
what they reach is in docs/frontier.md.
"""

from __future__ import annotations

import sys
from copy import deepcopy
from functools import cache
from importlib.resources import files
from typing import Any

from reticent.errors import one_of

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

RECIPES = ("start", "best")
"""`start`: where to begin with any method. `best`: the most accurate that is known."""
WITH = "+"  # between a data set and features that have a recipe of their own


def names() -> tuple[str, ...]:
    """The data sets that have a best recipe."""
    return tuple(name for name in _recipes() if WITH not in name)


def best_recipe(data: str, epsilon: float, n: int, features: str | None = None) -> dict[str, Any]:
    """Settings for `n` records of a data set at the largest searched ε that is not above this one.

    Every release sees every record: the least noise for a number of releases. With `features` that
    need something from the user, such as an encoder, there may be a recipe of their own.

    >>> recipe = best_recipe("cifar10", 1.5, 50_000)
    >>> recipe["features"], recipe["batch"]
    ('random-images', 50000)
    >>> recipe == best_recipe("cifar10", 1.0, 50_000)
    True
    """
    recipes = _recipes()
    with_features = f"{data}{WITH}{features}"
    name = with_features if with_features in recipes else one_of("data", data, names())
    recipe = deepcopy(recipes[name])
    searched: dict[str, dict[str, Any]] = recipe.pop("at")
    chosen = max(
        (e for e in searched if float(e) <= epsilon), key=float, default=min(searched, key=float)
    )
    return {**recipe, "batch": n, **searched[chosen]}


@cache
def _recipes() -> dict[str, dict[str, Any]]:
    return tomllib.loads((files("reticent") / "best.toml").read_text(encoding="utf-8"))
