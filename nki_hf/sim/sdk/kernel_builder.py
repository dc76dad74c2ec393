"""`nki.compiler.kernel_builder`: compiling a kernel to a file, which needs the chip's own compiler."""

from __future__ import annotations

from typing import Any

from nki_hf.sim.faults import fault

__all__ = ["compile_kernel"]


def compile_kernel(*args: Any, **kwargs: Any) -> Any:
    """Refused: nothing is compiled here.

    Raises:
      KernelFault: always, kind `unsupported`.
    """
    fault(
        "unsupported",
        "compile_kernel",
        "compiling a kernel to a file is not simulated",
        limit="no binary is made here",
        advice="Run the kernel with nki.simulate, or compile it with the SDK",
    )
