"""What an instruction is for, in one word that a picture has a colour for: a copy is told from an exponential."""

from __future__ import annotations

from nki_hf.sim.stream.events import Event

__all__ = ["WORDS", "word_of"]

WORDS = (
    "matmul",
    "transpose",
    "activation",
    "elementwise",
    "reduction",
    "copy",
    "mask or fill",
    "load",
    "store",
    "other transfer",
    "other",
)
"""The words, in the order of a legend."""

_MASKS = ("affine_select", "range_select", "select_reduce", "iota", "memset", "sequence_bounds", "tensor_copy_predicated")
_ACTIVATIONS = ("activation", "activation_reduce", "activate2", "exponential")
_COPIES = ("tensor_copy", "nc_stream_shuffle", "local_gather", "nc_n_gather", "quantize_mx")
_REDUCTIONS = (
    "tensor_reduce",
    "tensor_scalar_reduce",
    "tensor_partition_reduce",
    "bn_stats",
    "bn_aggr",
    "max8",
    "topk",
    "tensor_scalar_cumulative",
    "tensor_tensor_scan",
)
_ELEMENTWISE = ("tensor_tensor", "tensor_scalar", "scalar_tensor_tensor", "reciprocal", "dropout")


def word_of(event: Event) -> str:
    """One of `WORDS`."""
    name, op = event.opcode, event.attrs.get("op")
    if event.engine == "dma":
        into = bool(event.writes) and event.writes[0].buffer.on_chip
        out_of = bool(event.reads) and event.reads[0].buffer.on_chip
        return "load" if into and not out_of else "store" if out_of and not into else "other transfer"
    if name in ("nc_transpose", "dma_transpose") or (name == "nc_matmul" and event.attrs.get("is_transpose")):
        return "transpose"
    if name in ("nc_matmul", "nc_matmul_mx"):
        return "matmul"
    if name in _COPIES or (name in _ACTIVATIONS and op in ("copy", "identity")):
        return "copy"
    for word, names in (
        ("activation", _ACTIVATIONS),
        ("mask or fill", _MASKS),
        ("reduction", _REDUCTIONS),
        ("elementwise", _ELEMENTWISE),
    ):
        if name in names:
            return word
    return "other"
