"""flash_const_max: attention of many queries with a constant softmax shift, certified afterwards. `call.BINDING` is its
contract.

`kernel.py` is the NKI source with its two entries, `pipeline.py` the main pass, `work.py` its order of work and
`load_order.py` what is loaded when; `certificate.py` judges the shift, `worklist.py`, `exact.py` and `exact_blocks.py` compute
again what failed. `plan.py` turns a Problem into constants, `tuning.py` holds those that depend on the chip.
"""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    # The plan is imported where no kernel runs, so the NKI source, and with it the simulator, is imported when asked for.
    if name in ("flash_const_max", "flash_const_max_loop"):
        from nki_hf.kernels.flash_const_max import kernel

        return getattr(kernel, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}.")
