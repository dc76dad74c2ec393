"""Where operands lie: memories that an engine does not reach, words of PSUM, partitions at which compute starts.

Sources are the stubs of nki.isa (0.6) and the architecture guides; the rules hold for every front end, because it is the
compiler that refuses. A rule speaks of every value that can reach an operand on a way that the source shows, and of none that
is unknown.
"""

from __future__ import annotations

from nki_hf.tools.kernel_lint.evaluation.tile import HBM, WIDTHS, Size, Tile
from nki_hf.tools.kernel_lint.operands import ENGINES, PAIRS, PLACES, TILES, Operand, engine_of, operands
from nki_hf.tools.kernel_lint.rule import VERSIONS, Found, Module, rule

_MATMULS = ("nc_matmul", "nc_matmul_mx", "nc_transpose")
_ON_GPSIMD = {name for name, engines in ENGINES.items() if engines == ("gpsimd",)}
_DMA = ("dma_copy", "dma_transpose", "dma_compute", "sendrecv")
_NOT_COMPUTE = (*_DMA, "core_barrier", "register_load", "register_store", "register_move")
_BANK, _PARTITIONS, _WORD = 2048, 128, 4
_WRITTEN = ("dst", "reduce_res", "dst_idx")


@rule("psum-words", VERSIONS, "field reports: neuronx-cc stops at writes to PSUM that are not whole, aligned 4-byte words")
def _psum_words(module: Module) -> Found:
    for use, found in operands(module):
        for dst in (found[word] for word in _WRITTEN if word in found):
            width = WIDTHS.get(dst.tile.dtype)
            if not dst.in_psum or width is None:
                continue
            odd = _halved(dst, width)
            if odd:
                yield dst.node, f"nisa.{use.name} writes {dst.text}: {odd} of {width} bytes are no whole words"


def _halved(dst: Operand, width: int) -> str:
    """What of a write is no whole words of 4 bytes; empty if nothing is known to be."""
    tile = dst.tile
    if tile.steps is None or tile.shape is None:
        odd = dst.free is not None and not dst.flat and dst.free * width % _WORD
        return f"{dst.free} elements" if odd else ""
    if tile.offset is not None and tile.offset * width % _WORD:
        return f"{tile.offset} elements before it"
    sizes = [each if type(each) is int else None for each in (tile.shape[1:] if tile.rows else tile.shape)]
    axes: list[tuple[Size, Size]] = list(zip(tile.steps, sizes, strict=True))
    run = 1
    while axes and axes[-1][1] is not None and (axes[-1][1] == 1 or axes[-1][0] == run):  # neighbours continue each other
        run *= axes.pop()[1] or 1
    if axes and (axes[-1][0] is None or axes[-1][0] == run):
        return ""  # the run may go on
    if run * width % _WORD:
        return f"{run} elements"
    apart = [step for step, size in axes if step is not None and size is not None and step * width % _WORD]
    return f"{apart[0]} elements from part to part" if apart else ""


@rule("matmul-place", VERSIONS, "nki.isa.nc_matmul and nc_transpose: operands in SBUF, dst in PSUM (Tensor engine)")
def _matmul_place(module: Module) -> Found:
    for use, found in operands(module):
        on_tensor = use.name in ("nc_matmul", "nc_matmul_mx") or (use.name == "nc_transpose" and engine_of(use) == "tensor")
        for word, operand in found.items() if on_tensor else ():
            if word == "dst" and operand.tile.buffer == "sbuf":
                yield operand.node, f"nisa.{use.name}: dst {operand.text} is not in PSUM"
            if word in ("stationary", "moving", "data") and operand.in_psum:
                yield operand.node, f"nisa.{use.name}: {word} {operand.text} is in PSUM"


@rule("operand-place", VERSIONS, "stubs of nki.isa: operands that have to lie in SBUF, or in PSUM")
def _operand_place(module: Module) -> Found:
    for use, found in operands(module):
        for word, operand in found.items() if use.name not in _MATMULS else ():
            wanted = PLACES.get((use.name, word))
            if wanted is not None and operand.tile.buffer in ("sbuf", "psum") and operand.tile.buffer != wanted:
                yield operand.node, f"nisa.{use.name}: {word} {operand.text} is in {operand.tile.buffer.upper()}"


@rule("gpsimd-psum", VERSIONS, "architecture guide, NeuronCore-v2: GpSimd cannot access PSUM")
def _gpsimd_psum(module: Module) -> Found:
    for use, found in operands(module):
        if use.name in _ON_GPSIMD or engine_of(use) == "gpsimd":
            for word, operand in found.items():
                if operand.in_psum:
                    yield operand.node, f"nisa.{use.name} runs on GpSimd and {word} {operand.text} is in PSUM"


@rule("both-in-psum", VERSIONS, "stubs of nki.isa: of two tile operands one at most is in PSUM")
def _both_in_psum(module: Module) -> Found:
    for use, found in operands(module):
        pair = [found[word] for word in PAIRS.get(use.name, ()) if word in found]
        if len(pair) == 2 and all(operand.in_psum for operand in pair):
            yield use.call, f"nisa.{use.name}: {' and '.join(PAIRS[use.name])} are both in PSUM"


@rule("engine-choice", VERSIONS, "stubs of nki.isa: each instruction names the engines that run it")
def _engine_choice(module: Module) -> Found:
    for use, _ in operands(module):
        engine = engine_of(use)
        if use.name in ENGINES and engine not in ("", "unknown", *ENGINES[use.name]):
            yield use.call, f"nisa.{use.name}(engine={engine}): must be {' or '.join(ENGINES[use.name])}"


@rule("hbm-operand", VERSIONS, "architecture guide: compute engines reach SBUF and PSUM, only DMA reaches HBM")
def _hbm_operand(module: Module) -> Found:
    for use in module.uses.of(module.functions, "nisa"):
        for word, value in use.given.items() if use.name not in _NOT_COMPUTE else ():
            if not isinstance(value, Tile) or value.buffer not in HBM or word == "index":
                continue
            operand = Operand(use.nodes[word], value)
            if not value.argument:
                yield operand.node, f"nisa.{use.name}: {word} {operand.text} is in HBM"
            elif not use.doubtful and (value.sure or word in TILES):
                yield operand.node, f"nisa.{use.name}: {word} {operand.text} is an argument of the kernel, in HBM"


@rule(
    "partition-start",
    VERSIONS,
    "architecture guide: compute starts at partition 0, 32, 64 or 96; over 32 rows at 0 or 64, over 64 at 0",
)
def _partition_start(module: Module) -> Found:
    for use, found in operands(module):
        for operand in found.values() if use.name not in _DMA else ():
            first, rows = operand.tile.start, operand.rows
            if first is None or operand.tile.buffer not in ("sbuf", "psum"):
                continue
            step = 32 if rows is None or rows <= 32 else 64 if rows <= 64 else _PARTITIONS
            if first % step:
                yield operand.node, f"nisa.{use.name}: {operand.text} starts at partition {first}"


@rule("tile-size", VERSIONS, "architecture guide: 128 partitions; PSUM has 16 KiB each, a bank of 2 KiB per matmul")
def _tile_size(module: Module) -> Found:
    for use in module.uses.of(module.functions, "nl"):
        if not isinstance(use.result, Tile) or use.result.buffer not in ("sbuf", "psum"):
            continue
        made = Operand(use.call, use.result)
        if made.rows is not None and made.rows > _PARTITIONS:
            yield use.call, f"{made.text}: {made.rows} partitions"
        if made.in_psum and made.free is not None and made.free * WIDTHS.get(made.tile.dtype, 0) > 8 * _BANK:
            yield use.call, f"{made.text}: {made.free} elements per partition"
