"""Whether eager attention's score matrices fit memory, said with the figures."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from nki_hf.tools.model_bench.options import WrongUse

if TYPE_CHECKING:
    from nki_hf.tools.model_bench.model import Subject

__all__ = ["available_bytes", "check_memory", "eager_score_bytes", "eager_skip_reason"]

HBM_BANK_BYTES = 24 * 2**30
"""HBM of one logical core of a Trainium2 at LNC 2 (Neuron documentation, logical NeuronCore configuration)."""


def eager_score_bytes(subject: Subject) -> int:
    """Peak bytes of one layer's scores in eager attention: scores and masked scores in the run's dtype, the softmax's input
    and output in float32, probabilities in the run's dtype, each `[batch, num_heads_q, seqlen, seqlen]`.
    """
    batch, seqlen = subject.prompt.input_ids.shape
    scores = batch * subject.text_config.num_attention_heads * seqlen * seqlen
    itemsize = subject.model.dtype.itemsize
    softmax_itemsize = 0 if itemsize == 4 else 4  # float32 scores need no converted copy
    return scores * (2 * itemsize + softmax_itemsize + 4)


def available_bytes(device: str, meminfo: Path = Path("/proc/meminfo")) -> int | None:
    """Memory that scores may take: what the CPU's system calls available, or a Trainium core's HBM; None if unknown."""
    if device != "cpu":
        return HBM_BANK_BYTES
    try:
        lines = meminfo.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)


def check_memory(config: Any, *, batch_size: int, seqlen: int, available: int | None) -> None:
    """Refuse a run whose hidden states cannot fit, before anything of that size is made.

    Counted is less than what a run holds: the residual and an MLP's two inner states, in float32.

    Raises:
      WrongUse: with the figures.
    """
    inner = getattr(config, "intermediate_size", None)
    width = config.hidden_size + 2 * (inner if isinstance(inner, int) else config.hidden_size)
    needed = batch_size * seqlen * width * 4
    if available is not None and needed > available:
        raise WrongUse(
            f"seqlen={seqlen}, batch_size={batch_size} needs more than {needed / 2**30:,.0f} GiB for the hidden states alone, "
            f"{available / 2**30:,.1f} GiB are available: lower --seqlen or --batch-size."
        )


def eager_skip_reason(subject: Subject, device: str, available: int | None) -> str:
    """Why eager cannot run, with the figures; empty if it can."""
    needed = eager_score_bytes(subject)
    if available is None or needed <= available:
        return ""
    where = "memory available here" if device == "cpu" else "HBM of one core"
    batch, seqlen = subject.prompt.input_ids.shape
    return (
        f"its scores need {needed / 2**30:,.1f} GiB per layer ({batch} x {subject.text_config.num_attention_heads} heads x "
        f"{seqlen:,} x {seqlen:,}), {available / 2**30:,.1f} GiB {where}. Lower --seqlen or --batch-size to include it."
    )
