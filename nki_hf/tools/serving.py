"""`nki_hf serving`: the name that continuous batching takes on this machine, or why none; and the shell line for it."""

from __future__ import annotations

import re
from typing import Annotated

import typer

from nki_hf.adapters.hub_kernel import HUB_NAME, VARIABLE, entry, serving, set_local_kernels
from nki_hf.tools.screen import Screen

__all__ = ["command"]


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
        environ: dict[str, str] = {}
        set_local_kernels(environ, name)
        if VARIABLE not in environ:
            raise ValueError(f"{entry(name)!r} cannot be put into {VARIABLE}: it has a colon or an equals sign in its path.")
        print(f"export {VARIABLE}=${{{VARIABLE}:+${VARIABLE}:}}'{environ[VARIABLE]}'")
        return
    found, screen = serving(), Screen()
    if found.name is None:
        screen.say("continuous batching: no", str(found.problem))
        raise SystemExit(1)
    screen.say(f'continuous batching: attn_implementation="{found.name}"')
    screen.say("python: import nki_hf, then model.generate_batch(...)")
    if found.name == HUB_NAME:
        serve = f"transformers serve MODEL --continuous-batching --attn-implementation {HUB_NAME}"
        screen.line(f'shell:  eval "$(nki_hf serving --export)" && {serve}')
