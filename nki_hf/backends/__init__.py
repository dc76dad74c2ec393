"""What runs a kernel: the embedded simulator, Trainium, or (only on request) plain torch."""

from __future__ import annotations

from nki_hf.backends.base import Backend, KernelCall, RunResult

__all__ = ["Backend", "KernelCall", "RunResult"]
