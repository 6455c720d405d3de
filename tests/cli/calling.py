"""Commands as tests call them."""

from typer.testing import CliRunner

from reticent.cli import app
from reticent.errors import ReticentError

runner = CliRunner()


def call(*words):
    """Standard output of a command that must succeed."""
    result = runner.invoke(app, [str(word) for word in words])
    assert result.exit_code == 0, result.output
    return result.output


def refuse(*words):
    """The error of a command that must fail on purpose."""
    result = runner.invoke(app, [str(word) for word in words])
    assert isinstance(result.exception, ReticentError), (result.exception, result.output)
    return str(result.exception)
