"""The errors of the package. Every message says what is wrong (name = value), what is allowed, what to do."""

from __future__ import annotations

import importlib
from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["BackendUnavailable", "DeviceFailed", "FaultRecord", "KernelFault", "Reason", "UnsupportedProblem", "require"]


@dataclass(frozen=True, kw_only=True)
class Reason:
    """Why one kernel cannot take one problem.

    Attributes:
      kernel: the kernel, back end or adapter rule that says no, e.g. `flash_prefill`.
      field: the offending field, in the words of `Problem`, e.g. `head_dim`.
      value: its value, as text.
      limit: what is allowed, as the rest of a sentence, e.g. `must be 1 to 256`.
      advice: what the caller can do, a sentence; may be empty.
    """

    kernel: str
    field: str
    value: str
    limit: str
    advice: str = ""

    def __str__(self) -> str:
        text = f"{self.field}={self.value} is not supported by {self.kernel}: {self.field} {self.limit}."
        return f"{text} {self.advice}" if self.advice else text


class UnsupportedProblem(ValueError):
    """No kernel takes these inputs; `reasons` has one `Reason` per rule that said no."""

    def __init__(self, reasons: tuple[Reason, ...] | list[Reason]) -> None:
        self.reasons = tuple(reasons)
        super().__init__("\n".join(str(reason) for reason in self.reasons))


@dataclass(frozen=True, kw_only=True)
class FaultRecord:
    """A broken rule of the simulated machine, for programs that read faults.

    Attributes:
      kind: the class of rule: `shape`, `dtype`, `placement`, `engine`, `generation`, `bounds`, `capacity`,
        `uninitialized`, `overlap`, `race`, `deadlock`, `argument`, `output`, `unsupported`; `error` if the kernel's own Python
        raised.
      instruction: public name of the instruction, e.g. `nc_matmul`.
      message: what is wrong, with the values.
      limit: what is allowed.
      advice: what to do; may be empty.
      operands: one entry per operand, e.g. `moving k_sbuf[128, 512] bfloat16 sbuf`.
      file: the kernel's source file.
      line: the kernel's line.
      details: further machine-readable facts (offending index, holders, the other access of a race).
    """

    kind: str
    instruction: str
    message: str
    limit: str = ""
    advice: str = ""
    operands: tuple[str, ...] = ()
    file: str = ""
    line: int = 0
    details: dict[str, Any] | None = None

    def to_dict(self) -> dict[str, Any]:
        """The record as plain JSON types."""
        return asdict(self)


class KernelFault(RuntimeError):
    """The simulated program broke a rule of the machine; `record` says which and where (kernel file:line)."""

    def __init__(self, record: FaultRecord) -> None:
        self.record = record
        text = f"{record.instruction}: {record.message}"
        if record.limit:
            text += f", {record.limit}"
        if record.file:
            text += f" ({record.file}:{record.line})"
        super().__init__(f"{text}. {record.advice}" if record.advice else f"{text}.")


class KernelTypeFault(KernelFault, TypeError):
    """A fault where the language documents a TypeError."""


class KernelValueFault(KernelFault, ValueError):
    """A fault where the language documents a ValueError."""


class DeviceFailed(RuntimeError):
    """A kernel did not compile or run on a device; the message says which, what was reported, and what to do."""


class BackendUnavailable(ImportError):
    """A back end or an optional package that is asked for cannot be used here; the message says how to get it."""


def require(what: str, extra: str, *packages: str) -> None:
    """Import optional packages before work that needs them begins.

    Args:
      what: who needs them, as the beginning of a sentence.
      extra: the extra of this package that installs them.
      packages: the packages' import names.

    Raises:
      BackendUnavailable: one of them is not installed.
    """
    for package in packages:
        try:
            importlib.import_module(package)
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] != package.partition(".")[0]:
                raise  # installed, and broken in its own way
            raise BackendUnavailable(f'{what} needs the {package} package: pip install "nki_hf[{extra}]"') from error
