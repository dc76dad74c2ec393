"""flash_backward: the gradients of attention from that of its output. `call.BINDING` is its calling contract."""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    # The plan is imported where no kernel runs, so the NKI source, and with it the simulator, is imported when asked for.
    if name == "flash_backward":
        from nki_hf.kernels.flash_backward.kernel import flash_backward

        return flash_backward
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}.")
