"""The settings of a training: recipe, then configuration file, then flags."""

from __future__ import annotations

import math
import sys
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from reticent import methods, models
from reticent.best import RECIPES, best_recipe
from reticent.best import names as best_names
from reticent.cli.own_data import completed, located, own_settings, published
from reticent.data import lookup as describe_data
from reticent.data.own import is_own
from reticent.data.own.starting import usable
from reticent.errors import CheckpointError, OptionError, among, one_of, whole
from reticent.features import describe as describe_features
from reticent.files import read_json, to_json, write_atomically
from reticent.methods.catalog import not_an_option
from reticent.privacy import Budget
from reticent.recipes import recipe_for

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

SETTINGS_FILE = "settings.json"
TABLES = ("data_options", "feature_options", "model_options", "method_options")


@dataclass(frozen=True)
class Settings:
    """Everything `reticent train` can be told about a training; all of it public."""

    data: str = "digits"
    recipe: str = "start"
    data_options: dict[str, Any] = field(default_factory=dict)
    root: str | None = None
    features: str = "none"
    feature_options: dict[str, Any] = field(default_factory=dict)
    standardise: bool = False
    standardise_noise: float | None = None
    standardise_bound: float | None = None
    standardise_clip: float | None = None
    model: str = "linear"
    activation: str | None = None
    model_options: dict[str, Any] = field(default_factory=dict)
    method: str = "dpsgd"
    method_options: dict[str, Any] = field(default_factory=dict)
    epsilon: float = 3.0
    delta: float = 1e-5
    non_private: bool = False
    batch: int = 256
    clip: float = 1.0
    clipping: str = "flat"
    noise: float | None = None
    valid_batch: int | None = None
    valid_noise: float | None = None
    bound: float | None = None
    beta: float | None = None
    trials: int | None = None
    pad: int | None = None
    steps: int | None = None
    epochs: float | None = None
    n: int | None = None
    optimizer: str = "sgd"
    lr: float = 0.5
    momentum: float = 0.0
    weight_decay: float = 0.0
    schedule: str = "constant"
    average: float | None = None
    every: int | None = None
    confusion: bool = True
    seed: int = 0
    device: str = "auto"
    microbatch: int | None = None
    data_on: str = "auto"
    path: str = "auto"
    precision: str | None = None

    @property
    def promises_epsilon(self) -> bool:
        """Whether the method's guarantee is differential privacy."""
        return _promises_epsilon(self.method)

    def to_json(self) -> dict[str, Any]:
        """The settings as JSON-ready data; no ε for a method that has none, no folders."""
        kept = asdict(self)
        kept["data"], kept["data_options"] = published(self.data, self.data_options)
        if not self.promises_epsilon:
            takes = {option.name for option in methods.describe(self.method).options}
            for name in ("epsilon", "delta", *_UNUSED):
                if name not in takes:
                    del kept[name]
        return kept


_UNUSED = ("batch", "clip", "clipping", "noise")  # by a method without an ε, if it has them not


def _promises_epsilon(method: str) -> bool:
    return methods.describe(method).guarantee == "differential-privacy"


_TYPES: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "float": (int, float),
    "bool": (bool,),
    "dict": (dict,),
}


_WORDS = {
    "str": "text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "dict": "a table",
}


def resolve(config: Path | None, flags: dict[str, Any]) -> Settings:
    """Settings from the data set's recipe, overridden by the file, overridden by the flags."""
    given = {key: value for key, value in flags.items() if value is not None}
    from_file = {} if config is None else read_config(config)
    data = given.get("data", from_file.get("data", Settings.data))
    features = given.get("features", from_file.get("features", Settings.features))
    method = given.get("method", from_file.get("method", Settings.method))
    epsilon = given.get("epsilon", from_file.get("epsilon", Settings.epsilon))
    _check_paths({**from_file, **given})
    n = given.get("n", from_file.get("n"))
    if n is not None:
        whole("n", n)  # batches and learning rates may follow from it
    which = one_of("recipe", given.get("recipe", from_file.get("recipe", "start")), RECIPES)
    if which == "best":
        recipe = _best(data, epsilon, {**from_file, **given})
    else:
        sure, delta = usable(epsilon, given.get("delta", from_file.get("delta")))
        recipe = recipe_for(data, features, method, sure, delta, n)
    stated = {**from_file, **given}
    files = [layer.pop("data_options", {}) for layer in (from_file, given)]
    stated["data_options"] = {name: value for layer in files for name, value in layer.items()}
    if is_own(data):
        if _promises_epsilon(method) and not stated.get("non_private"):
            Budget(epsilon, stated.get("delta", Settings.delta))  # refuses before a file is read
        recipe = own_settings(data, stated, recipe)
        for layer in (from_file, given):
            layer.pop("data", None)  # the recipe has it as a path that holds anywhere
    else:
        completed(data, stated["data_options"])  # which refuses any
    if given.get("model", from_file.get("model")) not in (None, recipe.get("model")):
        for name in ("activation", "model_options"):
            recipe.pop(name, None)  # they belong to the recipe's model
    # whoever sets one of these speaks for both
    for one, other in (("steps", "epochs"), ("epochs", "steps")):
        for layer in (from_file, given):
            if one in layer and other not in layer:
                recipe.pop(other, None)
                from_file.pop(other, None) if layer is given else None
    merged = {**recipe, **from_file, **given}
    layers = [layer.get("method_options", {}) for layer in (recipe, from_file, given)]
    if any("preset" in layer for layer in layers[1:]):  # which the recipe's numbers must not undo
        layers[0] = {name: layers[0][name] for name in ("batches",) if name in layers[0]}
    merged["method_options"] = {name: value for layer in layers for name, value in layer.items()}
    for table in ("feature_options", "model_options"):
        merged[table] = {
            name: value
            for layer in (recipe, from_file, given)
            for name, value in layer.get(table, {}).items()
        }
    _check_names(merged)
    _check_meant(method, stated)
    _check_size(merged, recipe, stated)
    if merged.get("non_private"):
        for name in ("epsilon", "delta", "noise"):
            if stated.get(name) is not None:
                raise OptionError(name, stated[name], "means nothing for a --non-private run")
    if stated.get("clip") == math.inf:
        raise OptionError("clip", math.inf, "must be finite; 1e9 cuts nothing")
    private = _promises_epsilon(method) and not merged.get("non_private")
    if private and stated.get("noise") == 0:
        raise OptionError("noise", 0, "gives no guarantee; say --non-private if that is meant")
    if merged.get("steps") is not None:
        whole("steps", merged["steps"])
    lengths = {"steps", "epochs"} & set(stated)
    if lengths and "noise" not in stated:
        merged.pop("noise", None)  # a stated length with no stated noise: what it then takes
    if merged.get("noise") is not None and not lengths and private:
        # a noise with no stated length: as many steps as the budget affords
        merged.pop("steps", None)
        merged.pop("epochs", None)
    return Settings(**merged)


def _best(data: str, epsilon: float, stated: dict[str, Any]) -> dict[str, Any]:
    """The best recipe; what makes it one may not be replaced, everything else may."""
    records = 0 if is_own(data) else describe_data(data).n_train  # refused, if there is no such set
    if data not in best_names():
        what = "a file of yours" if is_own(data) else f"{data}, for which none was searched"
        raise OptionError(
            "recipe", "best", f"is for {', '.join(best_names())}; leave it out for {what}"
        )
    n = stated.get("n") or records
    recipe = {"method": "dpsgd", **best_recipe(data, epsilon, n, stated.get("features"))}
    for name in ("features", "model", "method"):
        if stated.get(name, recipe[name]) != recipe[name]:
            raise OptionError(
                name, stated[name], f"the best recipe for {data} has {recipe[name]}; leave one out"
            )
    return recipe


def _check_paths(stated: dict[str, Any]) -> None:
    """Refuse an empty path, which would mean the folder of the command."""
    for name in ("data", "root"):
        if stated.get(name) == "":
            raise OptionError(name, "", "is empty; give a value, or leave it out")


def _check_names(merged: dict[str, Any]) -> None:
    """Refuse options that the model or the features do not have, before anything is computed."""
    model, kind = merged.get("model", Settings.model), merged.get("features", Settings.features)
    card = models.describe(one_of("model", model, models.names()))
    takes = [option.name for option in card.options]
    _check_known("model_option", merged["model_options"], model, takes, "beside its shape it takes")
    if kind != "none":
        takes = [option.name for option in describe_features(kind).options]
        _check_known("feature", merged["feature_options"], kind, takes, "it takes")


def _check_known(
    flag: str, options: dict[str, Any], owner: str, takes: list[str], says: str
) -> None:
    for name, value in options.items():
        if name not in takes:
            works = among(name, takes) or "none"
            error = OptionError(name, value, f"{owner} has no such option; {says}: {works}")
            error.of = flag
            raise error


def _check_size(merged: dict[str, Any], recipe: dict[str, Any], stated: dict[str, Any]) -> None:
    """Refuse fewer records than a batch takes that nobody asked for; the method sees to others."""
    n, card = merged.get("n"), methods.describe(merged.get("method", Settings.method))
    defaults = {option.name: option.default for option in card.options}
    for name in ("batch", "valid_batch"):
        size = merged.get(name, getattr(Settings, name)) or defaults.get(name)
        if n is not None and name in defaults and name not in stated and size > n:
            data = merged.get("data", Settings.data)
            whose = f"which the recipe for {data} has" if name in recipe else "the default"
            raise OptionError(
                "n", n, f"is less than {name} = {size}, {whose}; state a {name} that fits, too"
            )


def _check_meant(method: str, stated: dict[str, Any]) -> None:
    """Refuse what a method without an ε has no use for."""
    card = methods.describe(method)
    if _promises_epsilon(method):
        return
    for name in ("epsilon", "delta", "non_private"):
        if stated.get(name) is not None and stated[name] is not False:
            raise OptionError(
                name,
                stated[name],
                f"{method} promises no differential privacy (its guarantee: {card.guarantee}), so "
                "there is no ε to keep within; leave it out",
            )
    takes = {option.name for option in card.options}
    for name in _UNUSED:
        if stated.get(name) is not None and name not in takes:
            raise not_an_option(method, name, stated[name])


def assignments(option: str, given: list[str] | None) -> dict[str, Any] | None:
    """`NAME=VALUE` words as a table; values are TOML, anything else is text."""
    if not given:
        return None
    values: dict[str, Any] = {}
    for word in given:
        name, equals, value = word.partition("=")
        if not equals or not name.strip():
            raise OptionError(option, word, "must be NAME=VALUE")
        try:
            values[name.strip()] = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            values[name.strip()] = value
    return values


def read_config(path: Path) -> dict[str, Any]:
    """Read a TOML file whose keys are the names of the settings."""
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise OptionError("config", str(path), f"cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise OptionError("config", str(path), f"is not TOML: {error}") from None
    return checked(values, f"config {str(path)!r}")


def checked(values: dict[str, Any], where: str) -> dict[str, Any]:
    """Refuse keys that are no settings and values of the wrong type."""
    if not isinstance(values, dict):
        raise CheckpointError(f"{where} must hold a table of settings, not {type(values).__name__}")
    known = {f.name: str(f.type) for f in fields(Settings)}
    for key, value in values.items():
        if key not in known:
            raise OptionError(
                key, value, f"in {where}: no such setting; known: {among(key, known)}"
            )
        kinds = [k.strip().split("[")[0] for k in known[key].split("|")]
        allowed = tuple(t for kind in kinds for t in _TYPES.get(kind, ()))
        wrong_bool = isinstance(value, bool) and bool not in allowed
        if (value is not None or "None" not in kinds) and (
            wrong_bool or not isinstance(value, allowed)
        ):
            raise OptionError(key, value, f"in {where}: must be {_WORDS[kinds[0]]}")
    return values


def save_settings(settings: Settings, folder: Path) -> None:
    """Keep the settings beside the checkpoint, so that `--resume FOLDER` needs nothing else."""
    write_atomically(folder / SETTINGS_FILE, to_json(settings.to_json()))


def saved_settings(folder: Path) -> Settings:
    """The settings a run was started with."""
    path = folder / SETTINGS_FILE
    try:
        values = read_json(path)
    except OSError as error:
        raise CheckpointError(
            f"resume = {str(folder)!r}: is no run of this command: {error.strerror}"
        ) from None
    except ValueError as error:
        raise CheckpointError(f"{str(path)!r} is not JSON: {error}") from None
    kept = checked(values, f"{str(path)!r}")
    data, options = kept.get("data", Settings.data), kept.get("data_options", {})
    kept["data"], kept["data_options"] = located(folder, data, options)
    return Settings(**kept)
