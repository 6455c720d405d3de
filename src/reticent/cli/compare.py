"""`reticent compare`: several methods at several ε with several seeds, and a page about them."""

from __future__ import annotations

import shlex
from contextlib import nullcontext
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from reticent.cli import own_data
from reticent.cli import setting_flags as flag
from reticent.cli.output import AsJson, errors, print_json, said, screen
from reticent.cli.settings import assignments
from reticent.errors import OptionError, whole
from reticent.files import check_folder

# What is compared is read through this command line's settings, so it is imported when called.
if TYPE_CHECKING:
    from reticent.comparison import Comparison
    from reticent.reproduction.jobs import Outcome

FOLDER = Path("comparisons")
# flags that become settings of all methods that have a use for them
SHARED = (
    *("recipe", "features", "standardise", "standardise_noise", "standardise_bound"),
    *("standardise_clip", "model", "activation", "delta", "batch", "clip", "clipping", "noise"),
    *("steps", "epochs", "n", "optimizer", "lr", "momentum", "weight_decay", "schedule"),
    *("average", "confusion", "microbatch", "data_on", "precision"),
)


def compare(
    context: typer.Context,
    data: Annotated[
        str, typer.Option(help="Data set (`reticent data list`), or a file or folder of your own.")
    ] = "digits",
    methods: Annotated[
        str, typer.Option(help="By commas; `reticent methods list`, dpsur:published, ...")
    ] = "dpsgd,dpis,sgd",
    epsilon: Annotated[str, typer.Option(help="What a model may spend, by commas.")] = "1,3",
    seeds: Annotated[int, typer.Option(help="How many models of each method and ε.")] = 3,
    out: Annotated[
        Path | None, typer.Option(help="Folder for results; comparisons/DATA if left out.")
    ] = None,
    attacks: Annotated[
        str, typer.Option(help="none, or membership attacks by commas; for public data.")
    ] = "none",
    shadows: Annotated[int, typer.Option(help="Shadow models of attacks; an even number.")] = 8,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="METHOD.NAME=VALUE: a setting or option of one method."),
    ] = None,
    workers: Annotated[int, typer.Option(help="How many processes share the device.")] = 1,
    together: Annotated[
        bool, typer.Option("--together", help="Train seeds and ε of a model at once; public data.")
    ] = False,
    target: flag.Target = None,
    test: flag.Test = None,
    test_share: flag.TestShare = None,
    split_seed: flag.SplitSeed = None,
    classes: flag.Classes = None,
    columns: flag.Columns = None,
    bounds: flag.Bounds = None,
    side: flag.Side = None,
    grey: flag.Grey = None,
    recipe: flag.Recipe = None,
    features: flag.Features = None,
    feature: flag.Feature = None,
    standardise: flag.Standardise = None,
    standardise_noise: flag.StandardiseNoise = None,
    standardise_bound: flag.StandardiseBound = None,
    standardise_clip: flag.StandardiseClip = None,
    model: flag.Model = None,
    model_option: flag.ModelOption = None,
    activation: flag.Activation = None,
    delta: flag.Delta = None,
    batch: flag.Batch = None,
    clip: flag.Clip = None,
    clipping: flag.Clipping = None,
    noise: flag.Noise = None,
    steps: flag.Steps = None,
    epochs: flag.Epochs = None,
    n: flag.Nominal = None,
    optimizer: flag.Optimizer = None,
    lr: flag.Rate = None,
    momentum: flag.Momentum = None,
    weight_decay: flag.WeightDecay = None,
    schedule: flag.Schedule = None,
    average: flag.Average = None,
    confusion: flag.Confusion = None,
    microbatch: flag.Microbatch = None,
    data_on: flag.DataOn = None,
    precision: flag.Precision = None,
    root: flag.Root = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, ...")] = "auto",
    as_json: AsJson = False,
) -> None:
    """Train methods at several ε with several seeds; what is finished is kept, and stays.

    Settings are those of each method's recipe, unless a flag or --set says otherwise. The same
    command goes on after a crash or Ctrl-C. Models of your own records are run folders with secret
    noise; what all of them cost together is stated.
    """
    from reticent.comparison.plans import compare_plan
    from reticent.comparison.running import check_way

    flags = locals()
    shared = {name: flags[name] for name in SHARED if flags[name] is not None}
    for name, value in (
        ("data_options", own_data.data_options(flags)),
        ("feature_options", assignments("feature", feature)),
        ("model_options", assignments("model_option", model_option)),
    ):
        if value is not None:
            shared[name] = value
    whole("workers", workers)
    show = not as_json
    with screen.status("reading") if show else nullcontext():
        comparison = compare_plan(
            data,
            _words("methods", methods),
            _numbers(epsilon),
            seeds=seeds,
            attacks=() if attacks == "none" else _words("attacks", attacks),
            shadows=shadows,
            shared=shared,
            overrides=_overrides(set_),
            root=root,
        )
    check_way(comparison, together=together)
    folder = out or FOLDER / own_data.shown_name(comparison.data)
    check_folder("out", folder)
    options = {"device": device, "root": root, "workers": workers, "together": together}
    _run(comparison, folder, options, _given(context), as_json)


def _words(option: str, text: str) -> list[str]:
    """Names separated by commas; a comma too many is a mistake, not a name."""
    found = [word.strip() for word in text.split(",")]
    if text.strip() and not all(found):
        raise OptionError(option, text, "names stand between commas; one is missing")
    return found if text.strip() else []


def _numbers(text: str) -> list[float]:
    found = []
    for word in _words("epsilon", text):
        try:
            found.append(float(word))
        except ValueError:
            raise OptionError("epsilon", word, "must be a number, such as 0.5") from None
    return found


def _overrides(given: list[str] | None) -> dict[str, dict[str, Any]]:
    """`METHOD.NAME=VALUE` words by method."""
    found: dict[str, dict[str, Any]] = {}
    for name, value in (assignments("set", given) or {}).items():
        method, dot, option = name.partition(".")
        if not dot or not method or not option:
            raise OptionError("set", name, "must be METHOD.NAME=VALUE, such as dpsgd.lr=0.5")
        found.setdefault(method, {})[option.replace("-", "_")] = value
    return found


def _given(context: typer.Context) -> list[str]:
    """The command as it was given."""
    words = ["reticent", "compare"]
    for option in context.command.params:
        source = context.get_parameter_source(option.name or "")
        value = context.params.get(option.name or "")
        if source is None or source.name != "COMMANDLINE" or option.name == "as_json":
            continue
        for one in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(one, bool):
                words.append((option.opts if one else option.secondary_opts)[0])
            else:
                words += [option.opts[0], str(one)]
    return words


def _without_folders(words: list[str]) -> str:
    """A command for a page: folders say who ran it, and where."""
    shown = [
        PureWindowsPath(word).name
        if PurePosixPath(word).is_absolute() or PureWindowsPath(word).is_absolute()
        else word
        for word in words
    ]
    return shlex.join(shown)


def _run(
    comparison: Comparison,
    folder: Path,
    options: dict[str, Any],
    words: list[str],
    as_json: bool,
) -> None:
    from reticent.cli.comparing import View, table, watched
    from reticent.comparison.running import run_comparison

    try:
        left = _planned(comparison, folder, as_json)
    except KeyboardInterrupt as error:
        said(
            error,
            "stopped while planning: nothing more was trained or charged; go on with: "
            f"{shlex.join(words)}",
        )
        raise
    for text in comparison.warnings:
        errors.print(f"[bold yellow]warning:[/] {escape(text)}", soft_wrap=True)
    if not as_json:
        _announce(comparison, left, folder)
    view = View(comparison, options["workers"])
    try:
        with watched(view, screen, quiet=as_json) as tell:
            done = run_comparison(
                comparison, folder, command=_without_folders(words), tell=tell, **options
            )
    except KeyboardInterrupt:
        made = len(view.outlook.outcomes)
        errors.print(
            f"stopped with {made} of {len(view.names)} done; go on with: {shlex.join(words)}",
            soft_wrap=True,
            markup=False,
        )
        raise typer.Exit(130) from None
    if as_json:
        print_json({**done.found, "folder": str(folder), "page": str(done.page)})
    else:
        screen.print(table(done.found))
        _conclude(done.found, done.page)
    _complain(view.names, done.outcomes)


def _planned(comparison: Comparison, folder: Path, as_json: bool) -> int:
    """Find out whether all of it can be done; how many jobs there are to do."""
    from reticent.comparison.plans import check
    from reticent.comparison.running import to_do

    left, cells = to_do(comparison, folder)
    if not as_json and not screen.is_terminal:  # where no status is shown
        screen.print(f"planning {len(cells)} settings")
    with nullcontext() if as_json else screen.status("planning") as status:

        def say(text: str) -> None:
            if status is not None:
                status.update(f"planning {escape(text)}")

        check(comparison, cells, say)
    return left


def _announce(comparison: Comparison, jobs: int, folder: Path) -> None:
    from reticent.comparison.folder import spent_in

    name = own_data.shown_name(comparison.data)
    screen.print(
        f"[bold]{escape(name)}[/]: {len(comparison.labels)} methods, {jobs} jobs to do; "
        f"results in {escape(str(folder))}",
        soft_wrap=True,
    )
    before = sum(len(group.spent) for group in spent_in(folder)) if comparison.own else 0
    if before and jobs:
        screen.print(
            f"[bold]{before} models were trained on these records in this folder before[/]; what "
            "they cost counts too"
        )
    if comparison.own:
        most = comparison.seeds * sum(cell.epsilon or 0 for cell in comparison.cells)
        screen.print(
            f"these are your own records: the models have secret noise, and together they may "
            f"spend up to ε = {most:g}",
            soft_wrap=True,
        )


def _conclude(found: dict[str, Any], page: Path) -> None:
    from reticent.comparison.remarks import whole_cost

    without = [m["label"] for m in found["methods"] if m["guarantee"] != "differential-privacy"]
    screen.print("mean ± half of a 95 % confidence interval over seeds")
    if without:
        screen.print(escape(f"* no ε is proved: {', '.join(without)}"))
    for text in whole_cost(found):
        screen.print(escape(text), soft_wrap=True)
    screen.print(f"page: {escape(str(page))}", soft_wrap=True)


def _complain(names: dict[str, str], outcomes: dict[str, Outcome]) -> None:
    """Say what has no result, and end with 1 if anything has none."""
    failed = {key: outcome for key, outcome in outcomes.items() if outcome.state != "done"}
    for key, outcome in failed.items():
        errors.print(
            f"[red]{outcome.state}[/] {escape(names[key])}: {escape(outcome.error or '')}",
            soft_wrap=True,
        )
    if failed:
        raise typer.Exit(1)
