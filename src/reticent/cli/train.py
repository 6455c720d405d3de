"""`reticent train`: a private model from a data set's name."""

from __future__ import annotations

import math
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from reticent.cli import own_data
from reticent.cli import setting_flags as flag
from reticent.cli.building import build_training
from reticent.cli.cautions import cautions
from reticent.cli.deniability import without_epsilon
from reticent.cli.diagnostics import keep_diagnostics
from reticent.cli.output import AsJson, epsilon_text, number, print_json, screen, warn
from reticent.cli.preparing import refuse_taken_run
from reticent.cli.report import refresh_reports
from reticent.cli.settings import Settings, assignments, resolve, save_settings, saved_settings
from reticent.cli.stopping import Sitting, telling_what_was_stopped
from reticent.cli.tensorboard import Board, check_tensorboard
from reticent.cli.unfinished import check_begun
from reticent.coins import Coins
from reticent.errors import CheckpointError, OptionError
from reticent.report.folder import DIAGNOSTICS_FILE, PRIVATE_REPORT_FILE, REPORT_FILE
from reticent.training import Release, Result, Training
from reticent.training.diverged import in_words
from reticent.training.result import RUN_FILE


def train(
    data: Annotated[
        str | None,
        typer.Option(help="Data set (`reticent data list`), or a file or folder of your own."),
    ] = None,
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
    root: flag.Root = None,
    features: flag.Features = None,
    feature: flag.Feature = None,
    standardise: flag.Standardise = None,
    standardise_noise: flag.StandardiseNoise = None,
    standardise_bound: flag.StandardiseBound = None,
    standardise_clip: flag.StandardiseClip = None,
    model: flag.Model = None,
    model_option: flag.ModelOption = None,
    activation: flag.Activation = None,
    method: Annotated[str | None, typer.Option(help="Method; `reticent methods list`.")] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="NAME=VALUE: another option of `methods show METHOD`."),
    ] = None,
    epsilon: Annotated[float | None, typer.Option(help="ε to keep within.")] = None,
    delta: flag.Delta = None,
    non_private: Annotated[
        bool | None, typer.Option("--non-private", help="Train without noise or guarantee.")
    ] = None,
    batch: flag.Batch = None,
    clip: flag.Clip = None,
    clipping: flag.Clipping = None,
    noise: flag.Noise = None,
    valid_batch: Annotated[
        int | None, typer.Option(help="dpsur: expected records in a test.")
    ] = None,
    valid_noise: Annotated[
        float | None,
        typer.Option("--valid-noise", "--valid-sigma", help="dpsur: noise multiplier of the test."),
    ] = None,
    bound: Annotated[
        float | None, typer.Option(help="dpsur: bound on the change of the loss.")
    ] = None,
    beta: Annotated[float | None, typer.Option(help="dpsur: threshold of the test.")] = None,
    trials: Annotated[
        int | None, typer.Option(help="dpsur: rejections in a row after which to break off.")
    ] = None,
    pad: Annotated[
        int | None, typer.Option(help="dpsur: trials in multiples of this, against timing.")
    ] = None,
    steps: flag.Steps = None,
    epochs: flag.Epochs = None,
    n: flag.Nominal = None,
    optimizer: flag.Optimizer = None,
    lr: flag.Rate = None,
    momentum: flag.Momentum = None,
    weight_decay: flag.WeightDecay = None,
    schedule: flag.Schedule = None,
    average: flag.Average = None,
    every: Annotated[int | None, typer.Option(help="Releases between evaluations.")] = None,
    confusion: flag.Confusion = None,
    seed: Annotated[int | None, typer.Option(help="Public seed of the initial model.")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda, ...")] = None,
    microbatch: flag.Microbatch = None,
    data_on: flag.DataOn = None,
    path: Annotated[str | None, typer.Option(help="Gradients: auto, fast or reference.")] = None,
    precision: flag.Precision = None,
    config: Annotated[
        Path | None, typer.Option(help="TOML file with any of these settings.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the run.")] = None,
    overwrite: Annotated[
        bool,
        typer.Option("--overwrite", help="Replace the run in that folder."),
    ] = False,
    resume: Annotated[
        Path | None, typer.Option(help="Continue the run in this folder, as it was begun.")
    ] = None,
    coin_seed: Annotated[
        int | None,
        typer.Option(
            help="For tests: all sampling and noise from this seed. Whoever knows it can take the "
            "noise off; it is not stored."
        ),
    ] = None,
    checkpoint_every: Annotated[float, typer.Option(help="Seconds between checkpoints.")] = 60.0,
    private_diagnostics: Annotated[
        bool,
        typer.Option(
            "--private-diagnostics",
            help="Show and keep what ε does not cover, such as the number of trials; it must not "
            "leave whoever holds the records.",
        ),
    ] = False,
    tensorboard: Annotated[
        Path | None, typer.Option(help="Folder for TensorBoard; public numbers only.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress, only the result.")] = False,
    as_json: AsJson = False,
) -> None:
    """Train a model privately; with no options at all, a small one on embedded data."""
    flags = {name: value for name, value in locals().items() if name in Settings.__annotations__}
    flags["data_options"] = own_data.data_options(locals())
    flags["method_options"] = assignments("set", set_)
    flags["feature_options"] = assignments("feature", feature)
    flags["model_options"] = assignments("model_option", model_option)
    words = [] if tensorboard is None else ["--tensorboard", str(tensorboard)]
    words += ["--private-diagnostics"] if private_diagnostics else []
    sitting = Sitting(tuple(words))
    coins = None if coin_seed is None else Coins.from_seed(coin_seed)
    show = not (quiet or as_json)
    with telling_what_was_stopped(sitting):
        if resume is not None:
            kept = {**flags, "config": config, "out": out, "coin_seed": coin_seed}
            _refuse_options({**kept, "overwrite": overwrite or None})
            settings, folder = saved_settings(resume), resume
            if (folder / RUN_FILE).exists():
                raise CheckpointError(f"resume = {str(folder)!r}: that run is finished")
            if not settings.standardise:  # whose statistics are kept first, and missed by name
                check_begun(folder)
        else:
            if out is not None:
                refuse_taken_run(out, overwrite)  # before records are read, which may take minutes
            with screen.status("reading") if show else nullcontext():
                settings = resolve(config, flags)
            name = own_data.shown_name(settings.data)
            folder = out or Path("runs") / f"{name}-{settings.method}"
            own_data.warn(settings.data, settings.data_options)
        sitting.begin(settings, folder, resumed=resume is not None)
        if tensorboard is not None:
            check_tensorboard(tensorboard)
        if show:
            own_data.show(settings.data, settings.data_options)
        with screen.status("preparing") if show else nullcontext():
            training = build_training(
                settings,
                folder=folder,
                resume=resume is not None,
                overwrite=overwrite,
                coins=coins,
                checkpoint_every=checkpoint_every,
                private_diagnostics=private_diagnostics,
            )
        for text in cautions(training):
            warn(text)
        with _stopping_gently(training):
            if resume is None:
                save_settings(settings, folder)
                for name in (DIAGNOSTICS_FILE, REPORT_FILE, PRIVATE_REPORT_FILE):  # of another run
                    (folder / name).unlink(missing_ok=True)
            sitting.training = training
            board = None if tensorboard is None else Board(tensorboard, training)
            if show:
                _announce(training, settings)
            try:
                if show:
                    result = finish(training, board)
                else:
                    result = training.finish() if board is None else training.finish(board)
            finally:
                if board is not None:
                    board.close()
        sitting.finished = True
        if private_diagnostics:
            keep_diagnostics(training, folder)
        report = refresh_reports(folder, private=private_diagnostics, card=True)
    _conclude(result, folder, report, as_json)


def _refuse_options(given: dict[str, Any]) -> None:
    for name, value in given.items():
        if value is not None:
            raise OptionError(
                name, _shown(value), "a resumed run is as it was begun; leave this out"
            )


def _shown(value: Any) -> Any:
    return str(value) if isinstance(value, Path) else value


@contextmanager
def _stopping_gently(training: Training) -> Iterator[None]:
    """The first Ctrl-C or SIGTERM ends after the release under way; the second, at once."""

    def handle(number: int, frame: Any) -> None:
        training.stop()
        signal.signal(number, before[signal.Signals(number)])

    numbers = (signal.SIGINT, signal.SIGTERM)
    try:
        before = {number: signal.signal(number, handle) for number in numbers}
    except ValueError:  # not in the main thread
        yield
        return
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _announce(training: Training, settings: Settings) -> None:
    run = training.run
    trained = run.state.parameters.values.numel()
    options = training.method.options()
    taken = options.get("batch") or run.n // options.get("batches", 1)
    noise = f", noise multiplier {number(options['noise'])}" if "noise" in options else ""
    screen.print(
        f"[bold]{settings.method}[/] on [bold]{own_data.shown_name(settings.data)}[/]: "
        f"{settings.model} with {trained:,} parameters, {training.steps:,} releases of about "
        f"{taken:,} out of {run.n:,} records{noise}, on {run.device}"
    )


def finish(training: Training, board: Callable[[Release], None] | None = None) -> Result:
    """Make all releases with a progress bar."""
    budget = training.budget
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[shown]}"),
        TimeRemainingColumn(),
        console=screen,
        transient=True,
    )
    with bar:
        task = bar.add_task("releases", total=training.steps, shown="")
        bar.update(task, completed=training.run.state.step)

        def on_release(release: Release) -> None:
            shown: dict[str, str] = {}
            if release.metrics is not None:
                parts = [f"held-out {key} {value:.4f}" for key, value in release.metrics.items()]
                if budget is not None:
                    spent = training.run.ledger.quick_epsilon(budget.delta)
                    parts.append(f"ε {epsilon_text(spent)} of {budget.epsilon:g}")
                shown["shown"] = ", ".join(parts)
            bar.update(task, completed=release.step, **shown)  # type: ignore[arg-type]
            if board is not None:
                board(release)

        return training.finish(on_release)


def _conclude(result: Result, folder: Path, report: Path | None, as_json: bool) -> None:
    statement = result.statement
    if result.diverged is not None:
        warn(in_words(result.diverged))
    if as_json:
        last = result.metrics[-1] if result.metrics else {}
        stated = statement.to_json()
        if result.guarantee != "differential-privacy":
            stated = {"epsilon": None, "guarantee": result.guarantee, "released": result.released}
        return print_json(
            {
                **stated,
                "accuracy": last.get("accuracy"),
                "loss": last["loss"] if math.isfinite(last.get("loss", math.nan)) else None,
                "steps": result.steps,
                "seconds": None if result.seconds is None else round(result.seconds, 3),
                "diverged": result.diverged,
                "folder": str(folder),
                "report": None if report is None else str(report),
            }
        )
    table = Table(show_header=False)
    if result.accuracy is not None:
        table.add_row("held-out accuracy", f"{100 * result.accuracy:.2f} %")
    if result.guarantee != "differential-privacy":
        for name, text in without_epsilon(result):
            table.add_row(name, text)
    elif result.budget is None:
        table.add_row("guarantee", "none: this run added no noise")
    else:
        table.add_row(
            "guarantee",
            f"ε = {epsilon_text(statement.epsilon)} (budget {result.budget.epsilon:g}) at δ = "
            f"{statement.delta:g}, adding or removing one record",
        )
        table.add_row("proved by", statement.accountant)
    if result.diverged is not None:
        table.add_row("model", "[bold red]of no use: the training diverged[/]")
    table.add_row("releases", f"{result.steps:,}")
    spent = "not shown: it depends on the records" if result.seconds is None else None
    table.add_row("time", spent or f"{result.seconds:.1f} s")
    table.add_row("run folder", str(folder))
    if report is not None:
        table.add_row("report", str(report))
    return screen.print(table)
