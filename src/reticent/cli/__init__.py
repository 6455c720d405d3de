"""The command line: one file per command, each thin: parse, call, print."""

from __future__ import annotations

import io
import os
import sys

import typer

from reticent.cli import (
    account,
    audit,
    calibrate,
    compare,
    data,
    deniability,
    features,
    importance,
    methods,
    models,
    plan,
    predict,
    report,
    reproduce,
    threshold,
    train,
)
from reticent.cli.naming import name_flags
from reticent.cli.output import AS_JSON, errors, refused
from reticent.errors import ReticentError

app = typer.Typer(
    name="reticent",
    help="Train models on sensitive records with differential privacy, and an ε that holds up.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.command("train")(train.train)
app.command("plan")(plan.plan)
app.command("audit")(audit.audit)
app.command("predict")(predict.predict)
app.command("report")(report.report)
app.command("reproduce")(reproduce.reproduce)
app.command("compare")(compare.compare)
app.command("threshold")(threshold.threshold)
app.command("deniability")(deniability.deniability)
account.app.command("dpis")(importance.account)
calibrate.app.command("dpis")(importance.calibrate)
app.add_typer(account.app, name="account")
app.add_typer(calibrate.app, name="calibrate")
app.add_typer(data.app, name="data")
app.add_typer(features.app, name="features")
app.add_typer(methods.app, name="methods")
app.add_typer(models.app, name="models")
name_flags(app)


def _version(wanted: bool) -> None:
    if wanted:
        from reticent import __version__

        typer.echo(f"reticent {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Print the version."
    ),
) -> None:
    """Train models on sensitive records with differential privacy, and an ε that holds up."""


def _run() -> None:
    """Parse and call; who asked for JSON has it of what cannot be parsed, too."""
    if AS_JSON not in sys.argv:
        app()  # ends the process
    try:
        code = app(standalone_mode=False)
    except typer.Abort as error:  # an answer was wanted, and there is nobody to give it
        refused(error, "aborted")
        sys.exit(1)
    except Exception as error:
        message = getattr(error, "format_message", None)  # the parser's own errors have one
        if message is None:
            raise
        refused(error, message())
        sys.exit(getattr(error, "exit_code", 2))
    sys.exit(code if isinstance(code, int) else 0)


def main() -> None:
    """Run the command line; what goes wrong on purpose is one line, not a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # an ε on an ASCII terminal is no reason to die
    try:
        _run()
    except KeyboardInterrupt:
        errors.print("interrupted")
        sys.exit(130)
    except BrokenPipeError:  # the reader has seen enough
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
        sys.exit(1)
    except (ReticentError, OSError) as error:
        refused(error)
        sys.exit(2)
