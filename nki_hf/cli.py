"""The `nki_hf` program. Each verb is one file in tools/ with a function `command`; nothing else is listed here."""

from __future__ import annotations

import importlib
import pkgutil

import typer

import nki_hf.tools
from nki_hf.tools.program import Program

__all__ = ["app", "main"]

app = typer.Typer(
    name="nki_hf",
    cls=Program,
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
        if found.ispkg:  # parts of a verb, which may need packages of their own
            continue
        module = importlib.import_module(f"nki_hf.tools.{found.name}")
        command = getattr(module, "command", None)
        if command is not None:
            app.command(name=getattr(module, "VERB", found.name))(command)


_add_verbs()


def main() -> None:
    """Entry point of the console script; how it ends is said in tools/program.py."""
    app()
