"""`nki_hf verify` in this process."""

from typer.testing import CliRunner

from nki_hf.cli import app

__all__ = ["invoke"]


def invoke(*arguments):
    """What the command printed, and its exit code; an error that it did not handle is raised here."""
    result = CliRunner().invoke(app, ["verify", *map(str, arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result
