"""Settings of the package: one frozen record, read once from the environment, overridden for a block of code."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, fields, replace
from typing import Any

__all__ = ["CHIP_NAMES", "Settings", "configure", "settings", "using"]

CHIP_NAMES = ("trn1", "trn2", "trn3")
_TRUE, _FALSE = ("1", "true", "yes", "on"), ("", "0", "false", "no", "off")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a run may choose.

    Attributes:
      strict: True raises `UnsupportedProblem` where the default falls back and counts. `NKI_HF_STRICT`. Default: False.
      chip: the chip that the simulator stands for: trn1, trn2 or trn3. `NKI_HF_CHIP`. Default: trn2.
      lnc: logical-core degree of simulated launches, 1 or 2; None = the chip's default. `NKI_HF_LNC`. Default: None.
      backend: back end for CPU tensors, `simulator` or `torch_reference`. `NKI_HF_BACKEND`. Default: simulator.
    """

    strict: bool = False
    chip: str = "trn2"
    lnc: int | None = None
    backend: str = "simulator"

    def __post_init__(self) -> None:
        if self.chip not in CHIP_NAMES:
            raise ValueError(f"chip={self.chip!r} is not known: chip is one of {', '.join(CHIP_NAMES)}.")
        if self.lnc not in (None, 1, 2):
            raise ValueError(f"lnc={self.lnc!r} is not a logical-core degree: lnc is 1, 2 or None.")
        if self.backend not in ("simulator", "torch_reference"):
            raise ValueError(f"backend={self.backend!r} is not known: backend is simulator or torch_reference.")

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None) -> Settings:
        """Settings from the `NKI_HF_*` variables; a value that cannot be read is a ValueError that names it."""
        environ = os.environ if environ is None else environ
        values: dict[str, Any] = {}
        for item in fields(cls):
            variable = f"NKI_HF_{item.name.upper()}"
            text = environ.get(variable)
            if text is None:
                continue
            if item.name == "strict":
                if text.lower() not in _TRUE + _FALSE:
                    raise ValueError(f"{variable}={text!r} is not a switch: set it to 1 or 0.")
                values[item.name] = text.lower() in _TRUE
            elif item.name == "lnc":
                if text not in ("1", "2"):
                    raise ValueError(f"{variable}={text!r} is not a logical-core degree: set it to 1 or 2.")
                values[item.name] = int(text)
            else:
                values[item.name] = text
        for name, value in values.items():
            try:
                cls(**{name: value})
            except ValueError as error:
                raise ValueError(f"NKI_HF_{name.upper()}={value!r} cannot be used: {error}") from None
        return cls(**values)


_process: Settings | None = None
_block: ContextVar[Settings | None] = ContextVar("nki_hf_settings", default=None)


def settings() -> Settings:
    """The settings in force here: those of the innermost `using` block, else those of the process."""
    global _process
    local = _block.get()
    if local is not None:
        return local
    if _process is None:
        _process = Settings.from_environment()
    return _process


def configure(**changes: Any) -> Settings:
    """Change the settings of the whole process and return them; unknown names are a TypeError."""
    global _process
    _process = replace(_process or Settings.from_environment(), **changes)
    return _process


@contextlib.contextmanager
def using(**changes: Any) -> Iterator[Settings]:
    """Settings changed for a block of code, in this thread or task only."""
    token = _block.set(replace(settings(), **changes))
    try:
        yield settings()
    finally:
        _block.reset(token)
