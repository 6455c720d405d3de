"""`reticent plan`: what a budget buys, before anything is spent."""

from __future__ import annotations

import shlex
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any

import torch
import typer
from rich.table import Table

from reticent import best, features, models
from reticent.cli.output import AsJson, print_json, screen, warn
from reticent.data import lookup
from reticent.data.own import is_own
from reticent.errors import OptionError, whole
from reticent.known import Known, known
from reticent.models.summary import parameter_counts
from reticent.pace import Pace, measure
from reticent.plans import (
    Row,
    feasible,
    floor,
    in_words,
    meaning,
    most_parameters,
    rows_for,
    suggested,
    verdict,
)
from reticent.privacy import Budget, delta_note
from reticent.recipes import recipe_for

WORD_VECTOR_SIZE = 100  # of the public vectors that come with text data


@dataclass(frozen=True)
class Subject:
    """What is planned for.

    Attributes:
        n: nominal number of records.
        data: a data set by name, if one was given.
        parameters: how many are trained, if that is known.
        model: by name, with the shape of its input and its classes, if there is one.
        recipe: `best` where its recipe is planned, with the recipe's own number of steps.
        stated: options that the training must be told because they were told here.
    """

    n: int
    data: str | None = None
    parameters: int | None = None
    model: str | None = None
    input_shape: tuple[int, ...] = ()
    classes: int = 0
    model_options: dict[str, Any] = field(default_factory=dict)
    recipe: str | None = None
    recipe_steps: int | None = None
    stated: tuple[str, ...] = ()


def plan(
    n: Annotated[
        int | None, typer.Option("--n", help="Number of records; a data set's own if left out.")
    ] = None,
    epsilon: Annotated[float, typer.Option(help="ε to keep within.")] = 1.0,
    delta: Annotated[float, typer.Option(help="δ to keep within.")] = 1e-5,
    data: Annotated[str | None, typer.Option(help="Data set; `reticent data list`.")] = None,
    model: Annotated[str | None, typer.Option(help="Model; `reticent models list`.")] = None,
    dimension: Annotated[
        int | None, typer.Option(help="Number of trained parameters of a model of your own.")
    ] = None,
    batch: Annotated[
        list[int] | None, typer.Option(help="Expected records per release; may be repeated.")
    ] = None,
    steps: Annotated[
        list[int] | None, typer.Option(help="Number of releases; may be repeated.")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, ...")] = "auto",
    probe: Annotated[
        bool, typer.Option("--probe/--no-probe", help="Time a few releases on made-up records.")
    ] = True,
    as_json: AsJson = False,
) -> None:
    """Say what a budget buys: noise, accuracy to expect, time, and how to go on."""
    budget = Budget(epsilon, delta)
    subject = _subject(n, epsilon, data, model, dimension)
    with nullcontext() if as_json else screen.status("calibrating"):
        rows = rows_for(budget, subject.n, batch or (), steps or ())
        own = subject.recipe_steps
        if own is not None and not (batch or steps):
            rows += rows_for(budget, subject.n, [subject.n], [own])
            rows = sorted(set(rows), key=lambda row: (-row.batch, row.steps))
    pace = None
    if probe and subject.model is not None:
        with nullcontext() if as_json else screen.status("timing releases on made-up records"):
            pace = measure(
                subject.model,
                input_shape=subject.input_shape,
                classes=subject.classes,
                batch=max(row.batch for row in rows),
                device=device,
                model_options=subject.model_options,
            )
    chosen = _chosen(subject, rows, pace)
    reached = _known(subject, epsilon)
    if (note := delta_note(delta, subject.n)) is not None:
        warn(note)
    if as_json:
        return print_json(_report(subject, budget, rows, chosen, pace, reached))
    _meaning(subject, budget)
    _table(subject, budget, rows, chosen, pace)
    _outlook(subject, chosen, reached)
    return _next(subject, budget, chosen, pace)


# -- what is planned for ------------------------------------------------------------------------


def _subject(
    n: int | None, epsilon: float, data: str | None, model: str | None, dimension: int | None
) -> Subject:
    if dimension is not None:
        whole("dimension", dimension)
        if model is not None or data is not None:
            raise OptionError("dimension", dimension, "follows from --model and --data; give one")
    if n is not None:
        whole("n", n)
    if data is None:
        if n is None:
            raise OptionError("n", None, "must be given, or --data")
        if model is None:
            return Subject(n, parameters=dimension)
        card = models.describe(model)
        return _with_model(Subject(n), model, card.input_shape, card.classes, {})
    if is_own(data):
        raise OptionError(
            "data", data, "is no data set by name; for a file of your own give --n and --dimension"
        )
    entry = lookup(data)
    stated: tuple[str, ...] = ("n",) if n is not None else ()
    size = entry.n_train if n is None else n
    if model is None and data in best.names():
        recipe = best.best_recipe(data, epsilon, size)
        subject = Subject(size, data, recipe="best", recipe_steps=recipe["steps"], stated=stated)
        shape = (_feature_size(recipe["features"], recipe["feature_options"], entry.shape),)
        options = recipe["model_options"]
        return _with_model(subject, recipe["model"], shape, entry.n_classes, options)
    if model is not None:
        stated += ("model",)
    name = model or recipe_for(data, epsilon=epsilon).get("model", "linear")
    return _with_model(Subject(size, data, stated=stated), name, entry.shape, entry.n_classes, {})


def _with_model(
    subject: Subject, name: str, shape: tuple[int, ...], classes: int, options: dict[str, Any]
) -> Subject:
    built = models.build(name, classes=classes, input_shape=shape, **options)
    return Subject(
        subject.n,
        subject.data,
        parameter_counts(built)[0],
        name,
        shape,
        classes,
        options,
        subject.recipe,
        subject.recipe_steps,
        subject.stated,
    )


def _feature_size(name: str, options: dict[str, Any], shape: tuple[int, ...]) -> int:
    """How many numbers a record has as features, without computing any data set's."""
    card = features.describe(name)
    if name == "word-clusters":
        return WORD_VECTOR_SIZE + int(card.complete(options)["clusters"])
    transform = card.build(shape, **card.complete(options))
    # whitening keeps the number, and takes minutes to learn
    compute: Any = getattr(transform, "pooled", transform)
    with torch.no_grad():
        return int(compute(torch.zeros(1, *shape)).numel())


def _chosen(subject: Subject, rows: list[Row], pace: Pace | None) -> Row:
    if subject.recipe == "best":
        for row in rows:
            if (row.batch, row.steps) == (subject.n, subject.recipe_steps):
                return row
    return suggested(rows, None if pace is None else pace.per_record)


def _known(subject: Subject, epsilon: float) -> Known | None:
    """What was measured for this very plan; none for another number of records."""
    found = (
        None if subject.data is None or subject.recipe != "best" else known(subject.data, epsilon)
    )
    return found if found is not None and found.records == subject.n else None


# -- how it is said -----------------------------------------------------------------------------


def _command(subject: Subject, budget: Budget, chosen: Row) -> str | None:
    """The command that trains as planned; None without a data set that the command line knows."""
    if subject.data is None:
        return None
    words = ["reticent", "train", "--data", subject.data]
    if subject.recipe == "best":
        words += ["--recipe", "best"]
    if "model" in subject.stated:
        words += ["--model", str(subject.model)]
    words += ["--epsilon", f"{budget.epsilon:g}", "--delta", f"{budget.delta:g}"]
    if "n" in subject.stated:
        words += ["--n", str(subject.n)]
    if (chosen.batch, chosen.steps) != (subject.n, subject.recipe_steps):
        words += ["--batch", str(chosen.batch), "--steps", str(chosen.steps)]
    return shlex.join(words)


def _python(budget: Budget, chosen: Row) -> str:
    return (
        f"rt.train(model, (inputs, targets), method=rt.DPSGD(batch={chosen.batch}, clip=1.0), "
        f"steps={chosen.steps},\n         budget=rt.Budget(epsilon={budget.epsilon:g}, "
        f"delta={budget.delta:g}), optimizer=lambda p: torch.optim.SGD(p, lr=1.0))"
    )


def _report(
    subject: Subject,
    budget: Budget,
    rows: list[Row],
    chosen: Row,
    pace: Pace | None,
    reached: Known | None,
) -> dict[str, Any]:
    def line(row: Row) -> dict[str, Any]:
        length = None if subject.parameters is None else row.length(subject.parameters)
        return {
            "batch": row.batch,
            "steps": row.steps,
            "noise": row.noise,
            "per_release": row.per_release,
            "effective": row.effective,
            "length": length,
            "level": None if length is None else verdict(length)[0],
            "passes": row.work() / subject.n,
            "seconds": None if pace is None else pace.training(row.batch, row.steps),
        }

    return {
        "epsilon": budget.epsilon,
        "delta": budget.delta,
        "n": subject.n,
        "data": subject.data,
        "model": subject.model,
        "parameters": subject.parameters,
        "recipe": subject.recipe,
        "meaning": asdict(meaning(budget, subject.n)),
        "floor": floor(budget, subject.n),
        "most_parameters": {
            level: most_parameters(chosen.effective, level) for level in ("little", "some", "much")
        },
        "rows": [line(row) for row in rows],
        "suggested": line(chosen),
        "known": None if reached is None else {**asdict(reached), "says": reached.says()},
        "probe": None if pace is None else {**asdict(pace), "bytes": pace.memory(subject.n)},
        "command": _command(subject, budget, chosen) if feasible(chosen.effective) else None,
        "python": _python(budget, chosen) if feasible(chosen.effective) else None,
    }


def _meaning(subject: Subject, budget: Budget) -> None:
    said = meaning(budget, subject.n)
    screen.print(
        f"[bold]ε = {budget.epsilon:g}, δ = {budget.delta:g}[/] for each of {subject.n:,} records: "
        f"whoever sees the model can change their odds that a record was in it by a factor of "
        f"{said.odds:.3g} at most, so even odds become {100 * said.from_even:.1f} % at most. A "
        f"test that wrongly names 1 outsider in 100 finds at most {100 * said.caught:.1f} % of "
        "members."
    )


def _table(
    subject: Subject, budget: Budget, rows: list[Row], chosen: Row, pace: Pace | None
) -> None:
    least = floor(budget, subject.n)
    table = Table(caption=f"least noise with {subject.n:,} records: {least:.2e} per coordinate")
    for name in ("batch", "steps", "noise σ", "σ/batch", "effective", "of the least"):
        table.add_column(name, justify="right")
    if subject.parameters is not None:
        table.add_column("length", justify="right")
    if pace is not None:
        table.add_column("time", justify="right")
    for row in rows:
        cells = [
            f"{row.batch:,}",
            f"{row.steps:,}",
            f"{row.noise:g}",
            f"{row.per_release:.2e}",
            f"{row.effective:.2e}",
            f"{row.effective / least:.2f}",
        ]
        if subject.parameters is not None:
            cells.append(f"{row.length(subject.parameters):.3f}")
        if pace is not None:
            cells.append(_duration(pace.training(row.batch, row.steps)))
        table.add_row(*cells, style="bold" if row == chosen else None)
    screen.print(table)
    screen.print(
        "Noise is in clips: no record's gradient is longer than 1. σ/batch is the noise on each "
        "coordinate of one release's mean gradient; effective, σ/(batch·√steps), is that on the "
        "mean of all releases: rows that have it in common buy the same. It grows where σ falls "
        "below about 2: small batches and few steps then leave records unused that are paid for."
    )


def _outlook(subject: Subject, chosen: Row, reached: Known | None) -> None:
    if subject.parameters is not None:
        length = chosen.length(subject.parameters)
        screen.print(
            f"With {subject.parameters:,} parameters the noise on the mean of all releases has "
            f"length {length:.3f}: [bold]{verdict(length)[1]}[/]."
        )
    screen.print(
        f"{in_words(chosen.effective)} (A rule of thumb, from private linear models of small "
        "public data sets.)"
    )
    if reached is not None:
        screen.print(
            f"The best recipe reached {reached.says()}, test accuracy, mean of {reached.runs} runs "
            f"with {reached.records:,} records at δ = {reached.delta:g}."
        )
    elif subject.data is not None:
        screen.print("No accuracy was measured for this plan.")


def _next(subject: Subject, budget: Budget, chosen: Row, pace: Pace | None) -> None:
    if not feasible(chosen.effective):
        more = ", a larger batch or more steps" if feasible(floor(budget, subject.n)) else ""
        screen.print(f"Nothing to go on with: it takes more records or a larger ε{more}.")
        return
    own = (chosen.batch, chosen.steps) == (subject.n, subject.recipe_steps)
    why = (
        "as the best recipe has it"
        if own
        else "of the rows with the least noise, the largest batch and the fewest steps that do not "
        "take long"
    )
    screen.print(
        f"Suggested: batch {chosen.batch:,}, {chosen.steps:,} steps, {why}. Each record is used "
        f"{chosen.work() / subject.n:.3g} times on average."
    )
    if pace is not None:
        screen.print(
            f"Time: about {_duration(pace.training(chosen.batch, chosen.steps))} on {pace.device} "
            f"(a release of {pace.records:,} made-up records took {1e3 * pace.seconds:.3g} ms; "
            f"features, if any, are not included). Memory: about "
            f"{pace.memory(subject.n) / 2**20:,.0f} MiB."
        )
    elif subject.model is None:
        screen.print("Time and memory: unknown without --model or --data.")
    command = _command(subject, budget, chosen)
    screen.print("\nGo on with:")
    screen.print(command or _python(budget, chosen), style="bold", soft_wrap=True, markup=False)


def _duration(seconds: float) -> str:
    for unit, size in (("d", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"
