"""`reticent audit`: is the ε of a run true, and what does its model give away?"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from reticent.audit import attacks as known
from reticent.audit.books import check_books
from reticent.audit.canaries import KINDS, VIEWS, CanaryReport, audit_canaries
from reticent.audit.conduct import Check, watch
from reticent.audit.membership import (
    Attacking,
    MembershipReport,
    attack_model,
    attack_procedure,
    attack_split,
)
from reticent.audit.replay import ReplayReport, replay
from reticent.audit.roc_figure import draw_roc
from reticent.audit.shadows import Estimate
from reticent.cli.audit_tables import show_audit
from reticent.cli.auditing import AuditedRun, compare_records
from reticent.cli.output import AsJson, errors, print_json, screen
from reticent.cli.report import refresh_reports
from reticent.cli.unfinished import check_finished
from reticent.errors import OptionError, between, one_of, whole
from reticent.figures import check_plot
from reticent.files import check_folder, read_json, to_json, write_atomically
from reticent.report.folder import AUDIT_FILE, AUDIT_FORMAT, run_identity
from reticent.training.result import versions

SHADOWS_FOLDER = "shadows"
SECTIONS = ("books", "conduct", "replay", "canaries", "membership")
WARNING = "computed from the records without noise: as private as they are"
BOOKS_ALONE = "computed from run.json and model.safetensors, not from the records"


def audit(
    run: Annotated[Path, typer.Argument(help="Folder of a finished run.")],
    attacks: Annotated[
        str, typer.Option(help=f"all, none, or some of {', '.join(known.NAMES)}, by commas.")
    ] = "all",
    against: Annotated[
        str,
        typer.Option(
            help="Attack this model, or new ones on random halves of all records, or on the "
            "papers' 2:1:2:1 split: model, halves or split."
        ),
    ] = "model",
    targets: Annotated[int, typer.Option(help="Models to attack, of halves.")] = 1,
    shadows: Annotated[int, typer.Option(help="Shadow models; an even number.")] = 8,
    records: Annotated[int, typer.Option(help="Members, and non-members, at most.")] = 5000,
    duplicates: Annotated[
        str, typer.Option(help="Non-members that are members too: exclude or report.")
    ] = "exclude",
    canaries: Annotated[
        int, typer.Option(help="Canaries in one more training; 0: no such training.")
    ] = 1000,
    canary_kind: Annotated[str, typer.Option(help="gradient or input.")] = "gradient",
    canary_view: Annotated[str, typer.Option(help="white-box or black-box.")] = "white-box",
    releases: Annotated[int, typer.Option(help="Releases that are watched closely; 0: none.")] = 20,
    confidence: Annotated[float, typer.Option(help="Of bounds and intervals.")] = 0.95,
    seed: Annotated[int, typer.Option(help="Of all that is drawn here.")] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, ...")] = "auto",
    plot: Annotated[
        Path | None, typer.Option(help="Draw the attacks' ROC curves; .svg or .png.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress, only the result.")] = False,
    as_json: AsJson = False,
) -> None:
    """Check a run's books and conduct, replay it, plant canaries, and attack its model.

    Writes audit.json beside the run, readable by its owner alone. Exit status 1: something is
    wrong with the run's statement.
    """
    for option, value in (("canaries", canaries), ("releases", releases), ("seed", seed)):
        whole(option, value, least=0)
    if canaries == 1:
        raise OptionError("canaries", 1, "must be 0, or 2 and more")
    names = _names(attacks)
    one_of("against", against, ("model", "halves", "split"))
    if whole("targets", targets) != 1 and against != "halves":
        raise OptionError("targets", targets, "means nothing but with --against halves")
    one_of("canary_kind", canary_kind, KINDS)
    one_of("canary_view", canary_view, VIEWS)
    if not 0 < between("confidence", confidence, 0, 1) < 1:
        raise OptionError("confidence", confidence, "must lie between 0 and 1, both excluded")
    check_folder("run", run)
    check_finished(run)
    if (run / AUDIT_FILE).is_dir():
        raise OptionError("run", str(run), f"holds a folder named {AUDIT_FILE}: move it away")
    if plot is not None:
        check_plot(plot)
    attacking = None
    if names:
        attacking = Attacking(
            names,
            shadows=shadows,
            records=records,
            duplicates=duplicates,
            confidence=confidence,
            seed=seed,
        )
    bars = _Bars(show=not (quiet or as_json))
    books = check_books(run)
    found: dict[str, Any] = {"books": books.to_json()}
    bars.say(f"books: {_verdict(books.checks)}")
    if attacking is not None and against == "model" and not books.has_model:
        attacking = None
        _warn("the model was not attacked: what is in this folder is not what the run released")
    audited = None
    if attacking is not None or canaries or releases:
        audited = AuditedRun(run, device)
        promised = audited.settings.promises_epsilon
        if releases and promised:
            found.update(_watched(audited, releases, seed, bars))
        if canaries and audited.budget is None:
            bars.say("no canaries: no ε is promised that they could refute")
        elif canaries:
            planted = _canaries(audited, canaries, canary_kind, canary_view, confidence, seed, bars)
            found["canaries"] = planted.to_json()
        if attacking is not None:
            attacked = _attacked(audited, attacking, against, targets, bars)
            found["membership"] = attacked.to_json()
            if plot is not None:
                draw_roc(plot, attacked.curves(), epsilon=books.epsilon, delta=books.delta)
    if audited is None or not audited.has_read:
        unknown = compare_records(run)
        if unknown is not None:
            _warn(f"the records were not compared: {escape(unknown)}")
    before = _before(run)
    earlier = [name for name in before if name not in found]
    found = {**before, **found}
    wrong = _wrong(found)
    report = {
        "format": AUDIT_FORMAT,
        "warning": BOOKS_ALONE if found.keys() == {"books"} else WARNING,
        "passed": not wrong,
        "wrong": wrong,
        "confidence": confidence,
        **found,
        "versions": versions(),
        "run": run_identity(run),
    }
    path = run / AUDIT_FILE
    if as_json:
        print_json(report)
    else:
        show_audit(report, path)
        if earlier:
            screen.print(f"from an earlier audit of this run: {', '.join(earlier)}")
    write_atomically(path, to_json(report), mode=0o600)
    refresh_reports(run, private=True)
    if wrong:
        raise typer.Exit(1)


def _warn(text: str) -> None:
    errors.print(f"[bold yellow]warning:[/] {text}", soft_wrap=True)


def _before(run: Path) -> dict[str, Any]:
    """Sections of an earlier audit of the same run, which those made now replace."""
    try:
        earlier = read_json(run / AUDIT_FILE)
        same = earlier["format"] == AUDIT_FORMAT and earlier["run"] == run_identity(run)
        return {name: earlier[name] for name in SECTIONS if name in earlier} if same else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _names(attacks: str) -> tuple[str, ...]:
    if attacks == "all":
        return known.NAMES
    if attacks == "none":
        return ()
    names = tuple(name.strip() for name in attacks.split(","))
    for name in names:
        if name not in known.NAMES:
            raise OptionError(
                "attacks", name, f"must be all, none, or some of {', '.join(known.NAMES)}"
            )
    return names


class _Bars:
    """Progress on the screen, or nothing."""

    def __init__(self, *, show: bool) -> None:
        self.show = show

    def say(self, text: str) -> None:
        if self.show:
            screen.print(text)

    @contextmanager
    def bar(self, name: str, total: int | None = None) -> Iterator[Callable[[int, int], None]]:
        """A function that is told how much of how much is done."""
        if not self.show:
            yield lambda made, of: None
            return
        columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
        with Progress(*columns, console=screen, transient=True) as progress:
            task = progress.add_task(name, total=total)
            yield lambda made, of: progress.update(task, completed=made, total=of)


def _watched(audited: AuditedRun, releases: int, seed: int, bars: _Bars) -> dict[str, Any]:
    """The conduct of some releases on all records, and a replay on a few."""
    splits, model, method = audited.splits, audited.fresh_model(), audited.method()
    n = audited.settings.n or len(splits.train[0])
    options = {**audited.options(n), "budget": audited.budget, "n": n}
    with bars.bar("watching releases") as tell:
        seen = watch(
            model,
            splits.train,
            method=method,
            releases=releases,
            device=audited.device,
            on_release=tell,
            ledger=audited.ledger(),
            **options,
        )
    bars.say(f"conduct of {seen.releases} releases: {_verdict(seen.checks)}")
    options.pop("data_on")
    options.pop("precision")
    with bars.bar("replaying releases") as tell:
        replayed = replay(
            model,
            splits.train,
            method=method,
            releases=min(releases, 5),
            seed=seed,
            on_release=tell,
            ledger=audited.ledger(),
            **options,
        )
    bars.say(f"replay of {replayed.releases} releases: {_leaks(replayed)}")
    return {"conduct": seen.to_json(), "replay": replayed.to_json()}


def _leaks(report: ReplayReport) -> str:
    if report.passed:
        return f"nothing leaks in {report.draws} draws with one record more"
    return f"[bold red]{len(report.leaks)} leaks[/], the first: {report.leaks[0]}"


def _canaries(
    audited: AuditedRun,
    canaries: int,
    kind: str,
    view: str,
    confidence: float,
    seed: int,
    bars: _Bars,
) -> CanaryReport:
    seconds = audited.report.get("seconds")
    if seconds:
        bars.say(f"one more training with {canaries} canaries: about {_time(seconds)}")
    steps = int(audited.report["steps"])
    assert audited.budget is not None
    options = audited.options(len(audited.splits.train[0]))
    kept = {name: options[name] for name in ("microbatch", "path", "precision", "data_on")}
    with bars.bar("training with canaries") as tell:
        return audit_canaries(
            audited.fresh_model(),
            audited.splits.train,
            method=audited.method(),
            budget=audited.budget,
            steps=steps,
            canaries=canaries,
            kind=kind,
            view=view,
            confidence=confidence,
            seed=seed,
            device=audited.device,
            on_release=lambda release: tell(release.step, release.steps),
            **kept,
        )


def _attacked(
    audited: AuditedRun, attacking: Attacking, against: str, targets: int, bars: _Bars
) -> MembershipReport:
    train, test = audited.splits.train, audited.splits.test
    pool = len(train[0]) + len(test[0])

    def told(estimate: Estimate) -> None:
        if estimate.models:
            bars.say(
                f"{estimate.models} models of {estimate.steps} steps: about "
                f"{_time(estimate.seconds)}"
            )

    common: dict[str, Any] = {
        "build": audited.fresh_model,
        "plan": audited.plan(pool // (3 if against == "split" else 2), attacking.seed),
        "attacking": attacking,
        "folder": audited.folder / SHADOWS_FOLDER,
        "device": audited.device,
        "on_estimate": told,
    }
    with bars.bar("training shadow models") as tell:
        if against == "halves":
            return attack_procedure(audited.pool(), targets=targets, progress=tell, **common)
        if against == "split":
            return attack_split(audited.pool(), progress=tell, **common)
        return attack_model(audited.model(), train, test, progress=tell, **common)


def _time(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} minutes"


def _verdict(checks: tuple[Check, ...]) -> str:
    failed = [check for check in checks if not check.passed]
    if failed:
        return f"[bold red]{failed[0].name}: no[/] ({escape(failed[0].detail)})"
    return f"{len(checks)} checks passed"


def _wrong(found: dict[str, Any]) -> list[str]:
    """What speaks against the run's statement, in words."""
    wrong = [
        f"{section}: {check['name']}: {check['detail']}"
        for section in ("books", "conduct")
        for check in found.get(section, {}).get("checks", ())
        if not check["passed"]
    ]
    leaks = found.get("replay", {}).get("leaks", ())
    wrong += [f"replay: release {k['release']}: {k['kind']}: {k['what']}" for k in leaks]
    if found.get("canaries", {}).get("refuted"):
        wrong.append("canaries: the ledger's statement is refuted")
    return wrong
