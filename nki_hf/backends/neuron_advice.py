"""What to do after a failed launch, from the whole text of what nki, the compiler or the runtime raised.

One entry per cause, told by codes and phrases of AWS's own messages and never by single words: "memory" also stands in messages
about an address, "logical" in those about a shape. Sources: the compiler's pages of error codes, the runtime's page of
troubleshooting, and messages quoted in public threads: aws-neuron-sdk 1036, 1060, 1118, 1311, optimum-neuron 668, vllm 12443.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["Cause", "cause_of", "lines_of"]


@dataclass(frozen=True, kw_only=True)
class Cause:
    """Why a launch failed.

    Attributes:
      name: short name of the cause.
      pattern: what its messages contain.
      advice: what to do, in one sentence or two.
      bisect: whether running the same shape alone says more.
    """

    name: str
    pattern: re.Pattern[str]
    advice: str
    bisect: bool = False


def _pattern(*parts: str) -> re.Pattern[str]:
    return re.compile("|".join(parts), re.IGNORECASE)


_CAUSES = (
    Cause(
        name="programs not on PATH",
        pattern=_pattern(
            r"libneuronpjrt-path", r"No such file or directory: '?neuronx-cc\b", r"\bneuronx-cc: (command )?not found"
        ),
        advice="The programs of AWS's packages (neuronx-cc, libneuronpjrt-path) are not on PATH: activate the venv, or put its "
        "bin folder first, and start again.",
    ),
    Cause(
        name="islpy",
        pattern=_pattern(r"\bNCC_ISMP902\b", r"\bSimplifier error: is_subset\(\)"),
        advice="neuronx-cc 2.27 fails like this with islpy 2026.2, which a fresh install brings: pip install 'islpy==2026.1'.",
    ),
    Cause(
        name="graph of Trn1",
        pattern=_pattern(r"\bkernels in one graph on trn1\b", r"\bshared[- ]memory instruction"),
        advice="Trn1 is reported to take one kernel in a graph, and this graph has more (each attention layer is one): run the "
        "model on Trn2 or Trn3.",
        bisect=True,
    ),
    Cause(
        name="on-chip memory",
        pattern=_pattern(
            r"\bbe allocated in (SB|PSUM)\b",
            r"\bout of bound .*@(SB|PSUM)<",
            r"\bout of memory in (sbuf|psum)\b",
            r"\b(SBUF|PSUM)\b.{0,30}\b(allocation failed|exceeded|overflow)\b",
            r"\b(SBUF|PSUM)\b.{0,30}\bout of (memory|space)\b",
        ),
        advice="The kernel asks for more of the core's own memory (SBUF, PSUM) than there is: a fault of its plan, not of the "
        "call. Please report it with this message.",
        bisect=True,
    ),
    Cause(
        name="host memory",
        pattern=_pattern(
            r"\[F137\]", r"neuronx-cc was forcibly killed", r"insufficient system memory", r"\bCannot allocate memory\b"
        ),
        advice="The compiler was killed because the host's memory was full, not the device's: end other processes, compile "
        "on an instance with more memory, or shorten the sequence.",
    ),
    Cause(
        name="core in use",
        pattern=_pattern(r"Neuron ?Core\(s\) not available", r"cores? (is |are )?(in use|busy)\b"),
        advice="Another process holds the core, and a core belongs to one process until that ends: `neuron-ls` names it. End "
        "it, or choose another core with NEURON_RT_VISIBLE_CORES.",
    ),
    Cause(
        name="logical cores",
        # The degree alone says nothing: `--lnc=2` stands in every quoted call of the compiler.
        pattern=_pattern(
            r"\bNCC_E(ARG001|VRF066)\b",
            r"\bconfigured with LNC=",
            r"\bLNC\b.{0,60}\b(differs?|mismatch|unsupported|not supported)\b",
            r"\bLNC\b.{0,60}\b(does not match|must match|must agree)\b",
        ),
        advice="Run `nki_hf env`: it shows every source of the logical-core degree.",
    ),
    Cause(
        name="faulty memory",
        pattern=_pattern(r"uncorrectable memory error"),
        advice="The device's memory is faulty, not full: results may be wrong. Start again, elsewhere if it comes back.",
    ),
    Cause(
        name="too many instructions",
        pattern=_pattern(r"\bNCC_E(BVF030|VRF007|XTP004)\b", r"generated too many instructions"),
        advice="The compiler refuses so many instructions in one kernel or graph: shorten the sequence, lower the batch, or "
        "let one launch unroll less (nki_hf.backends.neuron_split.MAX_INSTRUCTIONS).",
        bisect=True,
    ),
    Cause(
        name="device memory",
        pattern=_pattern(
            r"\bNRT_RESOURCE\b",
            r"\bnrt_\w+ status=4\b",
            r"\bto alloc(ate)? (DEVICE|HBM) memory\b",
            r"\bto allocate \S+ \(alignment",
            r"\bmc_alloc: device mempool\b",
            r"\bNCC_E(OOM001|OOM002|VRF009|XSP001)\b",
            r"\bhigh-bandwidth memory limit\b",
            r"\bout of (device|HBM) memory\b",
        ),
        advice="The device's memory is full: shorten the sequence, lower the batch, or end other processes on this core.",
    ),
)


def lines_of(error: BaseException) -> list[str]:
    """Every line of an error and of what it was raised from, in that order; its type's name if it has no text."""
    lines: list[str] = []
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        lines += [line.strip() for line in str(current).splitlines() if line.strip()]
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)
    return lines or [type(error).__name__]


def cause_of(lines: list[str]) -> tuple[Cause, str] | None:
    """The cause that the lines name and the line that does; None if they name none.

    The causes are asked in the order of how much they say: a kernel that does not fit is also called out of memory.
    """
    for cause in _CAUSES:
        for line in lines:
            if cause.pattern.search(line):
                return cause, line
    return None
