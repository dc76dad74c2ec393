"""The simulator under the name `nki`, so that kernels written elsewhere run on it unchanged."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from types import ModuleType

from nki_hf import sim
from nki_hf.sim import collectives, compiler, dtypes, isa, kernel_builder, language, tensor, typing
from nki_hf.sim.isa import enums
from nki_hf.sim.language import operators
from nki_hf.sim.options import BLOCK, Block, SimOptions

__all__ = ["as_nki", "modules"]


@contextlib.contextmanager
def as_nki(options: SimOptions | None = None) -> Iterator[ModuleType]:
    """Block in which `import nki` and every public submodule give the simulator; the names are restored after it.

    Modules that were imported inside keep the simulator they bound, and kernels decorated inside keep the block's options,
    so both work after the block. Rules that public sources leave unsure warn instead of raising (`SimOptions.foreign`).

    The chip is trn2 unless something chooses another one, as everywhere in this package (the SDK's simulator takes trn3):
    `options`, NEURON_PLATFORM_TARGET_OVERRIDE, `nki.jit(platform_target=...)` or NKI_HF_CHIP.

    Args:
      options: options of launches of kernels decorated or launched inside. Without them each launch takes `SimOptions()`
        of its own moment, so that NEURON_PLATFORM_TARGET_OVERRIDE and NKI_PRECISE_FP may be set inside the block.

    Yields:
      The module that `import nki` gives.
    """
    found = modules()
    saved = {name: module for name, module in sys.modules.items() if name == "nki" or name.startswith("nki.")}
    token = BLOCK.set(Block(options))
    for name in saved:
        del sys.modules[name]
    sys.modules.update(found)
    try:
        yield found["nki"]
    finally:
        BLOCK.reset(token)
        for name in [name for name in sys.modules if name == "nki" or name.startswith("nki.")]:
            del sys.modules[name]
        sys.modules.update(saved)


def modules() -> dict[str, ModuleType]:
    """The modules by the names under which public kernels import them."""
    package = ModuleType("nki", sim.__doc__)
    package.__path__ = []
    meta, experimental = ModuleType("nki.meta"), ModuleType("nki.experimental")
    meta.__path__ = []
    found = {
        "nki": package,
        "nki.language": language,
        "nki.language.opcode": operators,
        "nki.language.dtypes": dtypes,
        "nki.isa": isa,
        "nki.isa.constants": enums,
        "nki.typing": typing,
        "nki.compiler": compiler,
        "nki.compiler.kernel_builder": kernel_builder,
        "nki.collectives": collectives,
        "nki.dtype": dtypes,
        "nki.tensor": tensor,
        "nki.meta": meta,
        "nki.meta.tensor": tensor,
        "nki.experimental": experimental,
    }
    for name in ("__version__", "jit", "simulate"):
        setattr(package, name, getattr(sim, name))
    experimental.while_loop = language.while_loop  # type: ignore[attr-defined]
    experimental.fori_loop = language.fori_loop  # type: ignore[attr-defined]
    for name, module in found.items():
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(found[parent], child, module)
    return found
