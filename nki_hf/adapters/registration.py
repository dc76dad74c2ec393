"""Registration: "nki" in both of Transformers' tables, as soon as its modelling module is there, or at once."""

from __future__ import annotations

import importlib.metadata
import re
import threading
import warnings
from typing import Any

from nki_hf.errors import BackendUnavailable

__all__ = ["NAME", "TRANSFORMERS_FLOOR", "install_hook", "register"]

NAME = "nki"
TRANSFORMERS_FLOOR = (5, 14)
"""First version whose mask functions and keyword arguments are those that the adapter is written for."""

_lock = threading.Lock()


def register() -> None:
    """Make `attn_implementation="nki"` known to Transformers now. Calling it again changes nothing.

    Raises:
      BackendUnavailable: torch or transformers is missing, or transformers is older than `TRANSFORMERS_FLOOR`.
    """
    problem = _unusable()
    if problem is not None:
        raise BackendUnavailable(problem)
    from transformers import AttentionInterface, AttentionMaskInterface

    from nki_hf.adapters.mask_function import nki_mask
    from nki_hf.adapters.transformers import nki_attention

    with _lock:
        AttentionInterface.register(NAME, nki_attention)
        AttentionMaskInterface.register(NAME, nki_mask)


def install_hook() -> None:
    """Register when transformers' modelling module is imported, or now if it already was."""
    import wrapt

    wrapt.when_imported("transformers.modeling_utils")(_on_import)


def _on_import(_: Any) -> None:
    # Somebody imports transformers, perhaps for another purpose: say why "nki" is missing, do not break the import.
    try:
        register()
    except BackendUnavailable as error:
        warnings.warn(str(error), stacklevel=2)


def _unusable() -> str | None:
    try:
        version = importlib.metadata.version("transformers")
        importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError as error:
        return f'attn_implementation="nki" needs torch and transformers ({error.name} is missing): pip install "nki_hf[hf]"'
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    if numbers < TRANSFORMERS_FLOOR:
        floor = ".".join(map(str, TRANSFORMERS_FLOOR))
        return f'transformers={version} is too old for attn_implementation="nki": it must be {floor} or newer. Upgrade it.'
    return None
