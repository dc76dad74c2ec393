"""The simulator under the name `nki`, so that kernels written elsewhere run on it unchanged."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import ModuleType

from nki_hf.sim import dtypes, isa, language
from nki_hf.sim.isa import enums, operators
from nki_hf.sim.options import BLOCK, Block, SimOptions
from nki_hf.sim.run.launch import jit, simulate
from nki_hf.sim.sdk import VERSION, collectives, compiler, kernel_builder, typing
from nki_hf.sim.tensors import tensor

__all__ = ["as_nki", "modules"]


@contextlib.contextmanager
def as_nki(options: SimOptions | None = None) -> Iterator[ModuleType]:
    """Block in which `import nki` and every public submodule give the simulator; the names are restored after it.

    Modules that were imported inside keep the simulator they bound, and kernels decorated inside keep the block's options,
    so both work after the block. Rules that public sources leave unsure warn instead of raising (`SimOptions.third_party`).

    The chip is trn2 unless something chooses another one, as everywhere in this package (the SDK's simulator takes trn3):
    `options`, NEURON_PLATFORM_TARGET_OVERRIDE, `nki.jit(platform_target=...)` or NKI_HF_CHIP.

    Args:
      options: options of launches of kernels decorated or launched inside. Without them each launch takes `SimOptions()`
        of its own moment, so that NEURON_PLATFORM_TARGET_OVERRIDE and NKI_PRECISE_FP may be set inside the block.

    Yields:
      The module that `import nki` gives.
    """
    block = Block(options, outer=BLOCK.get())
    lent = _Lent(modules())
    try:
        BLOCK.set(block)
        _lend(lent)
        yield lent.found["nki"]
    finally:
        _take_back(lent)
        block.open = False
        current: Block | None = block
        while current is not None and not current.open:
            current = current.outer
        if BLOCK.get() is block:
            BLOCK.set(current)


def modules() -> dict[str, ModuleType]:
    """The modules by the names under which public kernels import them."""
    package = ModuleType("nki", "The NKI language on CPU.")
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
    for name, value in (("__version__", VERSION), ("jit", jit), ("simulate", simulate)):
        setattr(package, name, value)
    experimental.while_loop = language.while_loop  # type: ignore[attr-defined]
    experimental.fori_loop = language.fori_loop  # type: ignore[attr-defined]
    for name, module in found.items():
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(found[parent], child, module)
    return found


@dataclass(eq=False)
class _Lent:
    """What one open block put under the names `nki`, and what stood there before."""

    found: dict[str, ModuleType]
    displaced: dict[str, ModuleType] = field(default_factory=dict)


_OPEN: list[_Lent] = []
_LOCK = threading.RLock()


def _lend(lent: _Lent) -> None:
    with _LOCK:  # known before it is done, so that an interrupt on the way is taken back
        lent.displaced = _standing()
        _OPEN.append(lent)
        _exchange(lent.found)


def _take_back(lent: _Lent) -> None:
    """Restore what the block displaced; blocks of other threads may have opened since and may close in any order."""
    with _LOCK:
        if lent not in _OPEN:  # an interrupt came before it was lent
            return
        position = _OPEN.index(lent)
        if position == len(_OPEN) - 1:
            _exchange(lent.displaced)
        else:
            _OPEN[position + 1].displaced = lent.displaced
        del _OPEN[position]


def _standing() -> dict[str, ModuleType]:
    """What is under the names `nki` and `nki.*`."""
    return {name: module for name, module in sys.modules.items() if name == "nki" or name.startswith("nki.")}


def _exchange(found: dict[str, ModuleType]) -> None:
    """Put `found` under the names `nki` and `nki.*`. No name of both is missing in between."""
    before = _standing()
    sys.modules.update(found)
    for name in before.keys() - found.keys():
        del sys.modules[name]
