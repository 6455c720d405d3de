"""Commands as tests call them."""

import json

from typer.testing import CliRunner

from reticent.cli import app
from reticent.errors import ReticentError

runner = CliRunner()


def call(*words):
    """What a command that must succeed prints, on either stream."""
    result = runner.invoke(app, [str(word) for word in words])
    assert result.exit_code == 0, result.output
    return result.output


def shown(*words):
    """The JSON that a command prints; what it says on standard error left out."""
    result = runner.invoke(app, [str(word) for word in words])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def refuse(*words):
    """The error of a command that must fail on purpose."""
    result = runner.invoke(app, [str(word) for word in words])
    assert isinstance(result.exception, ReticentError), (result.exception, result.output)
    return str(result.exception)
