"""What every command shares: where text goes, JSON for machines, errors without tracebacks."""

from __future__ import annotations

import json
import math
import sys
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

AS_JSON = "--json"
AsJson = Annotated[bool, typer.Option(AS_JSON, help="Print JSON for machines.")]

screen = Console(highlight=False)
errors = Console(stderr=True, highlight=False)


def print_json(data: Any) -> None:
    """One JSON document on standard output; infinities are refused, not written."""
    typer.echo(json.dumps(data, indent=2, allow_nan=False, ensure_ascii=False))


def said(stopped: KeyboardInterrupt, text: str) -> None:
    """Tell whoever pressed Ctrl-C what to do, on one line that can be copied, and only once."""
    if not getattr(stopped, "told", False):
        errors.print(text, soft_wrap=True, markup=False, highlight=False)
    stopped.told = True  # type: ignore[attr-defined]


def refused(error: Exception, message: str | None = None) -> None:
    """Say why a command ends: a line for people, and a document where one was asked for."""
    message = str(error) if message is None else message
    errors.print(f"[bold red]error:[/] {escape(message)}", soft_wrap=True)
    if AS_JSON in sys.argv:
        print_json({"error": {"kind": type(error).__name__, "message": message}})


def warn(text: str) -> None:
    """What the user should know, beside the output: one line on standard error."""
    errors.print(f"[bold yellow]warning:[/] {escape(text)}", soft_wrap=True)


def number(value: float | None, digits: int = 4) -> str:
    """A number for people; no bound is said in words."""
    return "no bound" if value is None or value == math.inf else f"{value:.{digits}g}"


def epsilon_text(value: float | None) -> str:
    """ε for people: rounded up, since a bound rounded down is none."""
    if value is None or value == math.inf:
        return "no bound"
    return f"{math.ceil(value * 1e4 - 1e-9) / 1e4:.4f}"
