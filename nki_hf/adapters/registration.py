"""Registration: "nki" in both of Transformers' tables, as soon as its modelling module is there, or at once; the op in torch,
as soon as torch is.
"""

from __future__ import annotations

import contextlib
import importlib.util
import re
import sys
import threading
import warnings
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from typing import Any, NoReturn

from nki_hf.errors import BackendUnavailable

__all__ = ["FLOORS", "NAME", "install_hook", "register"]

NAME = "nki"
FLOORS = {"torch": (2, 9), "transformers": (4, 57)}
"""Oldest versions that register; what each newer one can do is measured in docs/versions.md."""

_lock = threading.Lock()
_first = threading.RLock()


def register() -> None:
    """Make `attn_implementation="nki"` known to Transformers now. Calling it again changes nothing.

    Raises:
      BackendUnavailable: torch or transformers is missing, or older than its entry in `FLOORS`.
    """
    problem = _unusable()
    if problem is not None:
        raise BackendUnavailable(problem)
    from transformers import AttentionInterface, AttentionMaskInterface

    from nki_hf.adapters.mask_function import nki_mask
    from nki_hf.adapters.paged import PAGED, nki_paged_attention
    from nki_hf.adapters.transformers import nki_attention

    with _lock:
        AttentionInterface.register(NAME, nki_attention)
        AttentionMaskInterface.register(NAME, nki_mask)
        if f"{PAGED}sdpa" in AttentionInterface():  # a release whose continuous batching puts this before any name
            AttentionInterface.register(f"{PAGED}{NAME}", nki_paged_attention)
            AttentionMaskInterface.register(f"{PAGED}{NAME}", nki_mask)


def install_hook() -> None:
    """Register when transformers' modelling module is imported, or now if it already was; the same for torch and
    torch_neuronx and the ops.
    """
    if any(name in sys.modules for name in _WATCHED):
        _hook()
    elif not any(isinstance(finder, _FirstImport) for finder in sys.meta_path):
        sys.meta_path.insert(0, _FirstImport())


_WATCHED = ("torch", "torch_neuronx", "transformers")


class _FirstImport:
    """Installs the hooks at the first import of a watched package: wrapt takes as long to load as all else of `import nki_hf`,
    and most of the command line never comes to it.
    """

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: Any = None) -> ModuleSpec | None:
        if name not in _WATCHED:
            return None
        with _first:
            if self in sys.meta_path:
                _hook()
                sys.meta_path.remove(self)
        return importlib.util.find_spec(name)  # by the finders that are there now


def _hook() -> None:
    import wrapt

    wrapt.when_imported("torch")(_on_torch)
    # Where torch_neuronx itself imports this package it is not whole yet: the first call registers the ops.
    if not getattr(getattr(sys.modules.get("torch_neuronx"), "__spec__", None), "_initializing", False):
        wrapt.when_imported("torch_neuronx")(_on_torch_neuronx)
    wrapt.when_imported("torch.utils.flop_counter")(_on_flop_counter)
    wrapt.when_imported("transformers.modeling_utils")(_on_import)


def _on_torch(_: Any) -> None:
    from nki_hf.adapters.op_definition import define

    # A torch that is too old, or not complete yet: the op is defined with the first call, which says what is wrong.
    with contextlib.suppress(ImportError, AttributeError):
        define()


def _on_torch_neuronx(_: Any) -> None:
    # In the xla world, and in an installation that lacks something: the first call registers the ops, or says what is wrong.
    with contextlib.suppress(ImportError, AttributeError):
        from nki_hf.adapters.torch_op import native_ops_are_registered

        native_ops_are_registered()


def _on_flop_counter(_: Any) -> None:
    with contextlib.suppress(ImportError, AttributeError):
        from nki_hf.adapters.flops import register_flops

        register_flops()


def _on_import(_: Any) -> None:
    # Somebody imports transformers, perhaps for another purpose: say why "nki" cannot run, do not break the import.
    try:
        register()
    except BackendUnavailable as error:
        warnings.warn(str(error), stacklevel=2)
        _register_refusal(str(error))


def _register_refusal(problem: str) -> None:
    """Make a model that asks for "nki" raise `problem` when it runs, not Transformers' own error, which knows no reason."""

    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise BackendUnavailable(problem)

    try:
        from transformers import AttentionInterface, AttentionMaskInterface
    except ImportError:  # older than the tables themselves
        return
    with _lock:
        AttentionInterface.register(NAME, refuse)
        AttentionMaskInterface.register(NAME, refuse)


def _unusable() -> str | None:
    from importlib import metadata  # slow to load, and rarely asked

    for package, floor in FLOORS.items():
        try:
            version = metadata.version(package)
        except metadata.PackageNotFoundError:
            return f'attn_implementation="nki" needs torch and transformers ({package} is missing): pip install "nki_hf[hf]"'
        if tuple(int(part) for part in re.findall(r"\d+", version)[:2]) < floor:
            needed = ".".join(map(str, floor))
            return (
                f'{package}={version} is too old for attn_implementation="nki": it must be {needed} or newer. '
                f'Upgrade it: pip install "{package}>={needed}"'
            )
    return None
