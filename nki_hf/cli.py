"""The `nki_hf` program. Each verb is one file in tools/ with a function `command`; nothing else is listed here."""

from __future__ import annotations

import importlib
import os
import pkgutil
import sys

import typer

import nki_hf.tools
from nki_hf.tools.program import Program

__all__ = ["app", "main"]


def _program(only: str = "") -> typer.Typer:
    """The program, with all of its verbs or with one."""
    made = typer.Typer(
        name="nki_hf",
        cls=Program,
        help="Attention for Hugging Face Transformers on AWS Trainium, and the tools to see what it does without a chip.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,  # help in plain letters
    )

    @made.callback()
    def _root() -> None:
        """Keep verbs as sub-commands even when there is only one."""

    for name in [only] if only else _verbs():
        module = importlib.import_module(f"nki_hf.tools.{name}")
        command = getattr(module, "command", None)
        if command is not None:
            made.command(name=getattr(module, "VERB", name))(command)
    return made


def _verbs() -> list[str]:
    """Modules of tools/ that may be verbs; its packages are parts of one, and may need packages of their own."""
    return [found.name for found in pkgutil.iter_modules(nki_hf.tools.__path__) if not found.ispkg]


def __getattr__(name: str) -> typer.Typer:
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()["app"] = made = _program()
    return made


def main() -> None:
    """Entry point of the console script; how it ends is said in tools/program.py.

    A verb that is named comes alone: importing the others takes as long as a round of `judge`.
    """
    named = sys.argv[1] if len(sys.argv) > 1 else ""
    if named == "verify":  # products of tiles are too small for threads, and its two processes have the processors
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        program = _program(named if named in _verbs() else "")
    except KeyboardInterrupt:  # while modules load; after that tools/program.py says it
        print("interrupted.", file=sys.stderr)
        sys.exit(130)
    program()


app: typer.Typer
"""The program with all of its verbs, made when it is asked for."""
