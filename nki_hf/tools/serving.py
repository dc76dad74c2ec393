"""`nki_hf serving`: the name that continuous batching takes on this machine, or why none; and the shell line for it."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
from typing import Annotated

import typer

from nki_hf.adapters.hub_kernel import HUB_NAME, VARIABLE, entry, folder_of, local_problem, serving, set_local_kernels
from nki_hf.tools.screen import Screen

__all__ = ["command"]

_SERVER = ("fastapi", "uvicorn", "openai", "pydantic")
"""What `transformers serve` imports besides."""


def command(
    export: Annotated[
        bool, typer.Option("--export", help=f'Print only the line that sets {VARIABLE}: eval "$(nki_hf serving --export)"')
    ] = False,
    name: Annotated[str, typer.Option(help="With --export: the kernel name that is to lead to this package.")] = HUB_NAME,
) -> None:
    """Say which attn_implementation `generate_batch` and `transformers serve` take here, or why none."""
    if export:
        if not re.fullmatch(r"[\w.-]+/[\w.-]+", name, re.ASCII):
            raise ValueError(f"name={name!r} is not a kernel's: it is OWNER/NAME of letters, digits, dots and dashes.")
        print(_shell_line(name))
        return
    found, screen = serving(), Screen()
    if found.name is None:
        screen.say("continuous batching: no", str(found.problem))
        raise SystemExit(1)
    screen.say(f'continuous batching: attn_implementation="{found.name}"')
    screen.say("python: import nki_hf, then model.generate_batch(...)")
    if found.name == HUB_NAME:
        folder = folder_of()
        if folder != entry().partition("=")[2]:
            screen.say(f"note: {VARIABLE} leads {HUB_NAME} to {folder}, not to this package: your own entry is kept.")
        serve = f"transformers serve MODEL --continuous-batching --attn-implementation {HUB_NAME}"
        missing = [name for name in _SERVER if importlib.util.find_spec(name) is None]
        if missing:
            screen.say(f"note: the server needs {', '.join(missing)} too: pip install 'transformers[serving]'.")
        screen.line(f'shell:  eval "$(nki_hf serving --export)" && {serve}')


def _shell_line(name: str) -> str:
    """The line that adds our entry for a name to the variable of a POSIX shell, where none is there for that name yet.

    The shell decides, since a variable that is not exported is unknown here.

    Raises:
      ValueError: the variable does not parse, or cannot hold our path.
    """
    environ = {VARIABLE: os.environ.get(VARIABLE, "")}
    set_local_kernels(environ, name)
    if folder_of(name, environ) is None:
        raise ValueError(local_problem(environ, name))
    bare = f'{VARIABLE}="${{{VARIABLE}:-}}"; {VARIABLE}="${{{VARIABLE}%:}}"'  # a colon at the end is refused by kernels
    add = f'{VARIABLE}="${{{VARIABLE}:+${VARIABLE}:}}"{shlex.quote(entry(name))}'
    return f"{bare}; case \":${VARIABLE}\" in *':{name}='*) ;; *) {add} ;; esac; export {VARIABLE}"
