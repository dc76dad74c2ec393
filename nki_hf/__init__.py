"""Attention for Hugging Face Transformers on AWS Trainium: `import nki_hf`, then `attn_implementation="nki"`.

Importing this package is cheap: torch and transformers are touched only when they are used.
"""

from __future__ import annotations

import importlib
from typing import Any

from nki_hf.adapters.hub_kernel import set_local_kernels
from nki_hf.adapters.registration import install_hook

__version__ = "0.1.0"

_LAZY = {
    "BackendUnavailable": "nki_hf.errors",
    "KernelFault": "nki_hf.errors",
    "Mask": "nki_hf.problem",
    "Problem": "nki_hf.problem",
    "Settings": "nki_hf.settings",
    "UnsupportedProblem": "nki_hf.errors",
    "apply": "nki_hf.adapters.apply",
    "attention": "nki_hf.adapters.functional",
    "checked_batching": "nki_hf.adapters.checked_batching",
    "configure": "nki_hf.settings",
    "explain": "nki_hf.adapters.explain",
    "judge": "nki_hf.tools.judging.judgement",
    "merge": "nki_hf.adapters.merge",
    "register": "nki_hf.adapters.registration",
    "using": "nki_hf.settings",
}

__all__ = ["__version__", *sorted([*_LAZY, "flash_attn"])]


def __getattr__(name: str) -> Any:
    if name in ("attention", "merge"):
        from nki_hf.errors import require

        require(f"nki_hf.{name}", "hf", "torch")
    if name == "flash_attn":
        from nki_hf.errors import require

        require("nki_hf.flash_attn", "hf", "torch")
        return importlib.import_module("nki_hf.flash_attn")
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)


install_hook()
set_local_kernels()
