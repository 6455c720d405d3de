"""Errors name the flags of the command that was called, whatever the library calls its options."""

import ast
from pathlib import Path

import pytest
import typer

import reticent
from reticent import features, methods, models
from reticent.audit import attacks
from reticent.cli import app
from reticent.cli.naming import MEANT_BY, flag_for, in_flags
from reticent.errors import BudgetError, DataError, OptionError

from .calling import refuse

DPSGD = ("account", "dpsgd", "--n", 1000, "--batch", 10)
SMALL = ("train", "--model", "linear", "--batch", 100, "--steps", 2, "--quiet")
VALIDATORS = {
    *("OptionError", "whole", "positive", "between", "one_of", "not_negative", "finite", "single"),
    *("check_folder", "clip_bound", "assignments", "parse_range"),
}
# Options of Python calls that no command passes on; a command that begins to, says so here.
PYTHON_ONLY = {
    *("a", "adjacency", "attack", "audited", "bill", "block", "bound", "bounds", "build"),
    *("builder", "certificate", "change", "classifier", "classifiers", "coins", "correct"),
    *("count", "description", "family", "filter_order", "fit", "floor", "gamma", "group", "groups"),
    *("guesses", "how", "inputs", "input_shape", "kind", "known", "layer", "learning_rate"),
    *("least", "level", "measure", "measures", "memberships", "memory", "models", "most", "mu"),
    *("number", "options", "outcomes", "part", "plan", "population", "probability", "process"),
    *("ratio", "repeats", "row_norm", "rule", "sensitivity", "shape", "shares", "shingle", "sizes"),
    *("sketch", "smallest", "source", "subsets", "temperature", "top", "train", "trial_steps"),
    *("variance", "variants", "vectors", "view", "warmup", "weights", "width", "model_options"),
    *("scale", "offset", "depth", "name", "padding", "channels", "charge", "loss_fn"),
}


def commands(command, path=()):
    """Every command of the command line, with its flags by the library's names."""
    yield path, command
    for name, below in getattr(command, "commands", {}).items():
        yield from commands(below, (*path, name))


def all_flags():
    return {
        word.removeprefix("--").replace("-", "_")
        for _, command in commands(typer.main.get_command(app))
        for option in command.params
        for word in option.opts
        if word.startswith("--") or option.param_type_name == "argument"
    }


def named_options():
    """The names that errors are raised with, from the source itself, and where."""
    root = Path(reticent.__file__).parent
    for path in sorted(root.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and node.args:
                called = getattr(node.func, "id", getattr(node.func, "attr", ""))
                first = node.args[0]
                if called in VALIDATORS and isinstance(first, ast.Constant):
                    yield first.value, f"{path.relative_to(root)}:{node.lineno}"


def test_every_name_an_error_can_have_is_a_flag_or_is_explained():
    known = all_flags() | set(MEANT_BY) | PYTHON_ONLY
    for catalog in (methods, features, models):
        for name in catalog.names():
            known |= {option.name for option in catalog.describe(name).options}
    for name in attacks.NAMES:
        known |= set(attacks.describe(name).options)
    found = dict(named_options())
    assert len(found) > 150  # the walk sees what it should see
    assert {name: where for name, where in found.items() if name not in known} == {}


def test_what_a_name_is_explained_by_is_a_flag():
    flags = all_flags()
    assert {word for words in MEANT_BY.values() for word in words} <= flags


def test_all_commands_are_told_to_name_their_flags():
    found = dict(commands(typer.main.get_command(app)))
    assert len(found) > 20
    unwrapped = [path for path, one in found.items() if path and not _speaks(one)]
    assert unwrapped == []


def _speaks(command):
    return type(command).__module__ == "reticent.cli.naming"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--set", "together=0", "--method", "dpsur"), "--set together = 0: must be at least 1"),
        (("--clipping", "per-layer", "--clip", 1e39), "--clip = 1e+39: must be at most"),
        (("--clipping", "automatic", "--clip", 1e39), "--clip = 1e+39: must be at most"),
        (("--clipping", "quantile", "--clip", 1e39), "--clip = 1e+39: must lie in"),
        (("--lr", 1e39), "--lr = 1e+39: must lie in [1e-37, 1e+38]"),
        (("--lr", 1e-50), "--lr = 1e-50: must lie in [1e-37, 1e+38]"),
        (("--weight-decay", 1e39), "--weight-decay = 1e+39: must lie in"),
        (("--weight-decay", -1), "--weight-decay = -1.0: must be 0 or greater"),
        (("--data-on", "moon"), "--data-on = 'moon': must be one of"),
        (("--noise", 1, "--steps", 10**6), "--steps = 1000000: --epsilon = 3 at --delta = 1e-05"),
        (("--test-share", 0.5), "--test-share = 0.5"),
        (("--feature", "scales=1"), "--feature = {'scales': 1}: mean nothing without features"),
        (("--features", "scattering", "--feature", "scales=0"), "--feature scales = 0"),
    ],
)
def test_train_says_what_was_typed(words, says, tmp_path):
    said = refuse(*SMALL, *words, "--out", tmp_path / "run")
    assert said.startswith(says), said
    assert not (tmp_path / "run").exists()


def test_the_folder_is_out(tmp_path):
    (tmp_path / "file").write_text("")
    assert refuse(*SMALL, "--out", tmp_path / "file").startswith(f"--out = '{tmp_path / 'file'}'")


def test_what_stands_in_a_file_keeps_its_name(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text("batch = 1.5")
    assert refuse("train", "--config", path).startswith("batch = 1.5: in config")


def test_keys_of_a_file_are_shown_as_they_are_written_there(tmp_path):
    path = tmp_path / "mine.toml"
    for text in ("epsilonn = 3", '"--non-private" = true'):
        path.write_text(text)
        said = refuse("train", "--config", path)
        assert "--standardise-noise" not in said
        assert "standardise_noise, standardise_bound" in said
        assert text.split(" = ")[0].strip('"') == said.split(" = ")[0]
    assert said.endswith("did you mean non_private?")
    where = f"in config {str(path)!r}"
    for text, says in (
        ("weight_decay = -1", f"weight_decay = -1: {where}: must be 0 or greater"),
        (
            "[method_options]\nfoo = 1",
            f"method_options.foo = 1: {where}: is not an option of dpsgd",
        ),
        (
            'features = "scattering"\n[feature_options]\nscales = 0',
            f"feature_options.scales = 0: {where}: must be at least 1",
        ),
        ("[model_options]\nzeroo = 0", f"model_options.zeroo = 0: {where}: digits-cnn has no such"),
        ('data = ""', f"data = '': {where}: is empty"),
    ):
        path.write_text(text)
        assert refuse("train", "--config", path, "--out", tmp_path / "run").startswith(says), says
    path.write_text("weight_decay = 1")
    assert refuse("train", "--config", path, "--weight-decay", -2).startswith("--weight-decay = -2")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("train", "--data", "digit"), "did you mean digits?"),
        (("train", "--data", "Fashion-MNIST"), "did you mean fashion-mnist?"),
        (("train", "--method", "dpsdg"), "did you mean dpsgd?"),
        (("train", "--model", "digits-cn"), "did you mean digits-cnn?"),
        (("train", "--model-option", "zreo=1", "--model", "linear-head"), "did you mean zero?"),
        (("train", "--set", "clip_scedule=1"), "clip_stage, clipping, noise; did you mean"),
        (("train", "--features", "scatering"), "did you mean scattering?"),
        (("train", "--features", "scattering", "--feature", "sclaes=2"), "did you mean scales?"),
        (("train", "--schedule", "cosinus"), "did you mean cosine?"),
        (("reproduce", "dpsur/table"), "did you mean dpsur/table"),
        (("methods", "show", "magic"), "dpsur"),
    ],
)
def test_what_was_meant_is_asked_where_it_is_plain(words, says):
    said = refuse(*words)
    assert says in said
    assert ("did you mean" in said) is (says != "dpsur")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("threshold", "--valid-sigma", 0), "--valid-sigma = 0.0: must be greater than 0"),
        (("threshold", "--valid-noise=0"), "--valid-noise = 0.0: must be greater than 0"),
        ((*DPSGD, "--steps", 1, "--sigma", "nan"), "--sigma = nan: must be a finite number"),
        ((*DPSGD, "--steps", 1, "--noise", "nan"), "--noise = nan: must be a finite number"),
        (("train", "--sigma", -1), "--sigma = -1.0: must be greater than 0"),
        (("train", "--valid-sigma", 2), "--valid-sigma = 2.0: is not an option of dpsgd"),
        (("train", "--set", "foo=1"), "--set foo = 1: is not an option of dpsgd: batch, clip, "),
        (
            ("train", "--features", "scattering", "--feature", "depth=2"),
            "--feature depth = 2: scattering has no such option; it takes: scales",
        ),
    ],
)
def test_the_flag_that_was_typed_is_named(words, says):
    assert refuse(*words).startswith(says)


def test_an_option_of_another_method_says_whose_it_is():
    said = refuse("train", "--valid-batch", 3)
    assert said.startswith("--valid-batch = 3: is not an option of dpsgd: batch, clip, clip_end, ")
    assert said.endswith("noise; it is for dpsur")


@pytest.mark.parametrize(
    ("words", "flag"),
    [
        (("train", "--out", ""), "--out"),
        (("train", "--out="), "--out"),
        (("train", "--data", ""), "--data"),
        (("train", "--config", ""), "--config"),
        (("train", "--root", ""), "--root"),
        (("train", "--resume", ""), "--resume"),
        (("train", "--tensorboard", ""), "--tensorboard"),
        (("train", "--columns", "a:text", "--columns", ""), "--columns"),
        (("compare", "--out", ""), "--out"),
        (("reproduce", "dpsur/table2", "--out", ""), "--out"),
        (("predict", "runs", "--data", "a.csv", "--out", ""), "--out"),
        (("data", "list", "--root", ""), "--root"),
        (("account", "--ledger", ""), "--ledger"),
        (("report", ""), "run"),
        (("audit", ""), "run"),
    ],
)
def test_an_empty_path_is_not_the_folder_of_the_command(words, flag, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert refuse(*words).startswith(f"{flag} = '': is empty; give a value")
    assert not list(tmp_path.iterdir())


def test_flags_of_one_command_are_not_those_of_another():
    error = OptionError("valid_noise", 0, "must be greater than 0; test_share is another")
    assert in_flags(error, {"valid_noise": "--valid-sigma"}) == (
        "--valid-sigma = 0: must be greater than 0; test_share is another"
    )
    assert in_flags(error, {}) == "valid_noise = 0: must be greater than 0; test_share is another"
    assert flag_for("attack_lr", {"feature": "--feature"}) is None


def test_only_options_are_named_in_other_errors():
    flags = {"steps": "--steps", "test_share": "--test-share", "target": "--target"}
    assert in_flags(BudgetError("steps = 3: fewer steps"), flags) == "--steps = 3: fewer steps"
    # what is said of data is left alone: a column may have any name
    assert in_flags(DataError("target = 3"), flags) == "target = 3"


def test_a_taken_folder_says_how_to_replace_it(tmp_path):
    for name in ("run.json", "checkpoint.secret.pt"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / name).write_text("{}")
        assert "--overwrite" in refuse(*SMALL, "--out", folder)
