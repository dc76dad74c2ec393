"""The name by which Transformers' continuous batching takes this package: a kernel of the `kernels` loader, in a local folder.

`generate_batch` and `transformers serve` accept, besides torch's own, names of the form "owner/name", which the package
`kernels` resolves. It reads LOCAL_KERNELS ("name=folder:name=folder") before it looks anywhere else, so that our folder is
found without a download and with nothing patched. `import nki_hf` puts it there; a user's own entry for the name is kept.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from pathlib import Path

__all__ = ["FLOOR", "HUB_NAME", "VARIABLE", "Serving", "entry", "serving", "set_local_kernels"]

HUB_NAME = "nki-hf/flash-attention"
"""The documented name."""
VARIABLE = "LOCAL_KERNELS"
FLOOR = (5, 20)
"""The oldest Transformers whose continuous batching takes kernel names as they are. Those from `_PREFIXED` on put "paged|"
before any name, and take "nki" (adapters/paged.py)."""
_PREFIXED = (5, 2)


@dataclass(frozen=True, kw_only=True)
class Serving:
    """Whether continuous batching can use this package here.

    Attributes:
      name: the attention implementation to ask for, or None.
      problem: why not, and what to do; empty if it can.
    """

    name: str | None
    problem: str = ""


def entry(name: str = HUB_NAME) -> str:
    """What LOCAL_KERNELS has to hold for a name."""
    return f"{name}={Path(__file__).parents[1] / 'hub_kernel'}"


def set_local_kernels(environ: MutableMapping[str, str] = os.environ, name: str = HUB_NAME) -> None:
    """Add our folder to LOCAL_KERNELS, unless it names one for that name already, or cannot hold our path (a colon in it).

    Args:
      environ: where the variable is.
      name: under which our folder is found. Models that take listed kernels only (GPT-OSS) ask for one of theirs.
    """
    have, ours = environ.get(VARIABLE), entry(name)
    if ours.count("=") > 1 or ":" in ours:
        return
    if not have:
        environ[VARIABLE] = ours
    elif not any(item.partition("=")[0] == name for item in have.split(":")):
        environ[VARIABLE] = f"{have}:{ours}"


def serving(
    version: Callable[[str], str | None] | None = None, requires: Callable[[str], list[str] | None] | None = None
) -> Serving:
    """Which name continuous batching takes with the versions that are installed, or why none.

    Args:
      version: the version of a distribution, or None; default: the installed one's.
      requires: its requirements; default: the installed one's.
    """
    version, requires = version or _version, requires or _requires
    transformers = version("transformers")
    if transformers is None:
        return Serving(name=None, problem='transformers is missing: pip install "nki_hf[hf]".')
    if _numbers(transformers) < _PREFIXED:
        problem = (
            f"transformers={transformers} is too old: continuous batching takes names of other packages from "
            f"{_dotted(_PREFIXED)} on. Upgrade it."
        )
        return Serving(name=None, problem=problem)
    if _numbers(transformers) < FLOOR:
        return Serving(name="nki")
    least, below = _kernels_range(requires("transformers") or [])
    wanted = f"kernels>={_dotted(least)}" + (f",<{_dotted(below)}" if below else "")
    found = version("kernels")
    if found is None:
        problem = (
            f"transformers={transformers} loads kernel names through the package kernels, which is missing: "
            f'pip install "{wanted}".'
        )
        return Serving(name=None, problem=problem)
    if _numbers(found) < least or (below and _numbers(found) >= below):
        problem = (
            f"kernels={found} does not do for transformers={transformers}, which asks for {wanted}: "
            f'pip install "{wanted}", or a Transformers that takes this version (5.20 to 5.22 take kernels 0.17.2).'
        )
        return Serving(name=None, problem=problem)
    return Serving(name=HUB_NAME)


def _kernels_range(requirements: list[str]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Least version of `kernels` that these requirements allow, and the one that they exclude from; () = none."""
    for requirement in requirements:
        if re.match(r"kernels\b", requirement):
            least, below = re.search(r">=\s*([\d.]+)", requirement), re.search(r"<\s*([\d.]+)", requirement)
            return tuple(_numbers(found.group(1)) if found else () for found in (least, below))  # type: ignore[return-value]
    return (), ()


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version.partition("+")[0])[:3])


def _dotted(numbers: tuple[int, ...]) -> str:
    return ".".join(map(str, numbers))


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _requires(name: str) -> list[str] | None:
    try:
        return importlib.metadata.requires(name)
    except importlib.metadata.PackageNotFoundError:
        return None
