"""flash_prefill: attention of many queries with an online softmax. `call.BINDING` is its calling contract."""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    # The plan is imported where no kernel runs, so the NKI source, and with it the simulator, is imported when asked for.
    if name == "flash_prefill":
        from nki_hf.kernels.flash_prefill.kernel import flash_prefill

        return flash_prefill
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}.")
