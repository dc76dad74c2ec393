"""The name by which Transformers' continuous batching takes this package: a kernel of the `kernels` loader, in a local folder.

`generate_batch` and `transformers serve` accept, besides torch's own, names of the form "owner/name", which the package
`kernels` resolves. It reads LOCAL_KERNELS ("name=folder:name=folder") before it looks anywhere else, so that our folder is
found without a download and with nothing patched. `import nki_hf` puts it there; a user's own entry for the name is kept.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path

__all__ = [
    "FLOOR",
    "HUB_NAME",
    "VARIABLE",
    "Serving",
    "entry",
    "folder_of",
    "local_problem",
    "serving",
    "set_local_kernels",
]

HUB_NAME = "nki-hf/flash-attention"
"""The documented name."""
VARIABLE = "LOCAL_KERNELS"
FLOOR = (5, 20)
"""The oldest Transformers whose continuous batching takes kernel names as they are. Those from `_PREFIXED` on put "paged|"
before any name, and take "nki" (adapters/paged.py)."""
_PREFIXED = (5, 2)
_PUBLISHED = (0, 17, 2)
"""The newest `kernels` on the package index when this release was made (November 2026)."""
_INSTALLABLE = """pip install 'transformers[serving]>=5.20,<5.23' 'kernels>=0.17.2,<0.18'"""
"""Transformers that take kernel names with a published `kernels`: the extra `serving` of this package."""


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
    """Add our folder to LOCAL_KERNELS, unless it names one for that name already or `local_problem` finds a fault in it.

    Args:
      environ: where the variable is.
      name: under which our folder is found. Models that take listed kernels only (GPT-OSS) ask for one of theirs.
    """
    have, ours = environ.get(VARIABLE, "").removesuffix(":"), entry(name)
    if ":" in ours or _malformed(have) is not None:
        return
    if have:  # without the colon at the end, which kernels refuses
        environ[VARIABLE] = have if name in _folders(have) else f"{have}:{ours}"
    else:
        environ[VARIABLE] = ours


def local_problem(environ: Mapping[str, str] = os.environ, name: str = HUB_NAME) -> str:
    """Why LOCAL_KERNELS, as it is, leads to no folder for a name, and what to do; empty if it does.

    Args:
      environ: where the variable is.
      name: the kernel's name.
    """
    have = environ.get(VARIABLE, "")
    wrong = _malformed(have)
    if wrong is not None:
        return (
            f"{VARIABLE}={have!r} has the entry {wrong!r}, so that kernels refuses every name: entries are OWNER/NAME=FOLDER, "
            f"joined by single colons. Mend it, or unset it."
        )
    if name not in _folders(have):
        ours = entry(name).partition("=")[2]
        if ":" in ours:
            return (
                f"{VARIABLE} cannot lead to {ours!r}: colons separate its entries, and this path has one. "
                "Install nki_hf in a folder without a colon."
            )
        return f'{VARIABLE} has no entry for {name}: import nki_hf, or eval "$(nki_hf serving --export)".'
    folder = _folders(have)[name]
    if not (Path(folder) / "__init__.py").is_file() and not any(Path(folder).glob("*/")):
        return (
            f"{VARIABLE} leads {name} to {folder!r}, which is no folder of a kernel. "
            "Name one, or remove the entry: import nki_hf then adds its own."
        )
    return ""


def folder_of(name: str = HUB_NAME, environ: Mapping[str, str] = os.environ) -> str | None:
    """The folder that LOCAL_KERNELS has for a name; None if it has none."""
    return _folders(environ.get(VARIABLE, "")).get(name)


def _malformed(value: str) -> str | None:
    """The first entry that `kernels` refuses, None if there is none; it splits at colons, and each entry at its first "="."""
    if not value:
        return None
    return next((item for item in value.split(":") if "=" not in item), None)


def _folders(value: str) -> dict[str, str]:
    """Folder of each name; of entries for the same name the last counts."""
    return {name: folder for name, _, folder in (item.partition("=") for item in value.split(":")) if folder}


def serving(
    version: Callable[[str], str | None] | None = None,
    requires: Callable[[str], list[str] | None] | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Serving:
    """Which name continuous batching takes with the versions that are installed and LOCAL_KERNELS as it is, or why none.

    Args:
      version: the version of a distribution, or None; default: the installed one's.
      requires: its requirements; default: the installed one's.
      environ: where LOCAL_KERNELS is.
    """
    version, requires = version or _version, requires or _requires
    transformers = version("transformers")
    if transformers is None:
        return Serving(name=None, problem=f"transformers is missing: {_INSTALLABLE}.")
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
        problem = f"transformers={transformers} loads kernel names through the package kernels, which is missing: "
        return Serving(name=None, problem=problem + _way_out(least, wanted))
    if _numbers(found) < least or (below and _numbers(found) >= below):
        problem = f"kernels={found} does not do for transformers={transformers}, which asks for {wanted}: "
        return Serving(name=None, problem=problem + _way_out(least, wanted))
    problem = local_problem(environ)
    return Serving(name=None if problem else HUB_NAME, problem=problem)


def _way_out(least: tuple[int, ...], wanted: str) -> str:
    """What to install where `kernels` does not do."""
    install = f'pip install "{wanted}".'
    if least <= _PUBLISHED:
        return install
    return (
        f"{install} That version was not published when this release of nki_hf was made; the newest was {_dotted(_PUBLISHED)}. "
        f"Where pip does not find it, take a Transformers for a published one: {_INSTALLABLE}"
    )


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
    from importlib import metadata  # slow to load, and rarely asked

    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _requires(name: str) -> list[str] | None:
    from importlib import metadata  # slow to load, and rarely asked

    try:
        return metadata.requires(name)
    except metadata.PackageNotFoundError:
        return None
