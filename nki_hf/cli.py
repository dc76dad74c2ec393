"""The `nki_hf` program. Each verb is one file in tools/ with a function `command`; nothing else is listed here."""

from __future__ import annotations

import errno
import importlib
import os
import pkgutil
import sys

import typer

import nki_hf.tools

__all__ = ["app", "main"]

app = typer.Typer(
    name="nki_hf",
    help="Attention for Hugging Face Transformers on AWS Trainium, and the tools to see what it does without a chip.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback()
def _root() -> None:
    """Keep verbs as sub-commands even when there is only one."""


def _add_verbs() -> None:
    for found in pkgutil.iter_modules(nki_hf.tools.__path__):
        module = importlib.import_module(f"nki_hf.tools.{found.name}")
        command = getattr(module, "command", None)
        if command is not None:
            app.command(name=getattr(module, "VERB", found.name))(command)


_add_verbs()


def main() -> None:
    """Entry point of the console script; a standard output without room is one line and exit code 2."""
    try:
        app()
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left in its buffer has nowhere to go
        print(f"output cannot be written ({error.strerror}).", file=sys.stderr)
        sys.exit(2)
