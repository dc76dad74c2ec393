"""Rules of writes to PSUM, which is written in words of 4 bytes.

Sources: two field reports (NKI 0.5 and 0.6 on chips) of 16-bit transposes that pass the front end and stop neuronx-cc, one at
a start inside a word, one at an odd number of elements; and nki-library, whose load that turns tiles (norm_tkg_utils.py)
pads each 16-bit tile in PSUM to a multiple of 4 bytes and then writes odd numbers of elements there, as its decode kernels
do for a batch of one. So the start is sure; that a write must also fill its last word is not, and kernels written elsewhere
are warned about it.
"""

from __future__ import annotations

from nki_hf.sim.constraints.instructions import INSTRUCTIONS
from nki_hf.sim.constraints.operand import free_axes, show
from nki_hf.sim.constraints.rule import Operands, Violation, rule
from nki_hf.sim.tensors.tensor import NkiTensor

_SOURCE = "field reports of NKI 0.5 and 0.6; nki-library: core/subkernels/norm_tkg_utils.py (_PSUM_ALIGNMENT_BYTES)"
_WRITTEN = ("dst", "reduce_res", "val_dst", "idx_dst", "dst_idx", "dst_scale")
_WORD = 4
_OPCODES = tuple(opcode for opcode in INSTRUCTIONS if opcode not in ("set_rng_seed", "rand_set_state"))
"""What writes tiles; DMAs do not reach PSUM."""

_ADVICE = "Give each part an even number of 16-bit elements (four of 8 bits): pad the tile, read only what is wanted"


def _written_in_psum(o: Operands) -> list[tuple[str, NkiTensor]]:
    return [(name, tile) for name, tile in o.tiles(_WRITTEN) if tile.space == "psum"]


def _free_start(tile: NkiTensor) -> int:
    """Byte of the lowest element within its partition."""
    buffer = tile.storage.buffer
    base = buffer.address[1] if buffer.address is not None else 0
    down = sum(stride * (size - 1) for stride, size in free_axes(tile) if stride < 0)
    return base + (tile.offset + down) * tile.itemsize % max(buffer.bytes_per_partition, 1)


@rule(_OPCODES, "placement", "a write to PSUM starts at a whole word, a multiple of 4 bytes in the partition", _SOURCE)
def _psum_word_start(o: Operands) -> Violation:
    for name, tile in _written_in_psum(o):
        if _free_start(tile) % _WORD:
            return f"{name} {show(tile)} {tile.dtype} starts at byte {_free_start(tile)} of its partition", _ADVICE
    return None


@rule(_OPCODES, "placement", "a write to PSUM consists of whole words of 4 bytes", _SOURCE, documented=False)
def _psum_whole_words(o: Operands) -> Violation:
    for name, tile in _written_in_psum(o):
        moved = tile.indirection
        steps = [stride for stride, _ in free_axes(tile)]
        run = 1
        if steps and steps[-1] in (1, -1):  # the innermost axis is one run of neighbours
            run = free_axes(tile)[-1][1]
            steps.pop()
        if type(moved).__name__ == "TensorIndirection":
            run = 1  # every element has a place of its own
        if moved is not None:
            steps.append(moved.stride)
        what = f"{name} {show(tile)} {tile.dtype}"
        if run * tile.itemsize % _WORD:
            return f"{what} is written in runs of {run * tile.itemsize} bytes", _ADVICE
        wrong = [step for step in steps if step * tile.itemsize % _WORD]
        if wrong:
            return f"{what} has runs {abs(wrong[0]) * tile.itemsize} bytes apart", _ADVICE
    return None
