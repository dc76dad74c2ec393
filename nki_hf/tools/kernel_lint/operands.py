"""Operands of instructions: memory, element type and size, where the documents limit them and the source shows them.

Sources are the stubs of nki.isa (0.6) and the architecture guides; the rules hold for every front end, because it is the
compiler that refuses.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from nki_hf.tools.kernel_lint.calls import calls_of
from nki_hf.tools.kernel_lint.iterations import straight_calls
from nki_hf.tools.kernel_lint.rule import VERSIONS, Found, Module, rule
from nki_hf.tools.kernel_lint.sizes import WIDTHS, Size, number, pattern_of, whole_of
from nki_hf.tools.kernel_lint.tile import Tile

POSITIONS = {
    "nc_matmul": ("dst", "stationary", "moving"), "nc_transpose": ("dst", "data"), "tensor_tensor": ("dst", "data1", "data2"),
    "tensor_copy": ("dst", "src"), "memset": ("dst", "value"), "activation": ("dst", "op", "data"),
    "activation_reduce": ("dst", "op", "data"), "tensor_reduce": ("dst", "op", "data", "axis"), "iota": ("dst", "pattern"),
    "tensor_scalar": ("dst", "data", "op0", "operand0"), "reciprocal": ("dst", "data"), "affine_select": ("dst", "pattern"),
    "scalar_tensor_tensor": ("dst", "data", "op0", "operand0", "op1", "operand1"),
    "tensor_copy_predicated": ("dst", "src", "predicate"), "select_reduce": ("dst", "predicate", "on_true", "on_false"),
    "tensor_partition_reduce": ("dst", "op", "data"),
    "range_select": ("dst", "on_true_tile", "comp_op0", "comp_op1", "bound0", "bound1"),
}  # fmt: skip
"""Instruction -> its first parameters, for calls by position."""

PAIRS = {
    "tensor_tensor": ("data1", "data2"),
    "scalar_tensor_tensor": ("data", "operand1"),
    "select_reduce": ("on_true", "predicate"),
    "tensor_copy_predicated": ("src", "predicate"),
}
"""Instruction -> the two operands of which one at most is in PSUM."""

ALIKE = {
    "tensor_tensor": ("dst", "data1", "data2"),
    "tensor_copy": ("dst", "src"),
    "tensor_copy_predicated": ("dst", "src", "predicate"),
    "scalar_tensor_tensor": ("dst", "data", "operand1"),
    "tensor_scalar": ("dst", "data"),
    "activation": ("dst", "data"),
    "reciprocal": ("dst", "data"),
    "select_reduce": ("dst", "on_true", "predicate"),
    "range_select": ("dst", "on_true_tile"),
}
"""Instruction -> the tiles that have the same partitions and the same elements in each."""

COLUMNS = {
    "tensor_scalar": ("operand0", "operand1"),
    "scalar_tensor_tensor": ("operand0",),
    "activation": ("bias", "scale", "reduce_res"),
    "activation_reduce": ("bias", "scale", "reduce_res"),
    "range_select": ("bound0", "bound1", "reduce_res"),
    "select_reduce": ("on_false", "reduce_res"),
}
"""Instruction -> the operands that hold one value per partition, where they are tiles."""

DTYPES = {
    ("range_select", "bound0"): ("float32",),
    ("range_select", "bound1"): ("float32",),
    ("select_reduce", "predicate"): ("int8", "uint8", "int16", "uint16"),
    ("tensor_copy_predicated", "predicate"): ("uint8", "uint16", "uint32"),
}
"""(instruction, operand) -> element types that its stub allows."""

ENGINES = {
    "memset": ("vector", "gpsimd"),
    "tensor_copy": ("vector", "scalar", "gpsimd"),
    "tensor_tensor": ("vector", "gpsimd"),
    "tensor_scalar": ("vector", "scalar", "gpsimd"),
    "nc_transpose": ("tensor", "vector"),
}
"""Instruction -> the engines that its stub names, besides `unknown`."""

_ON_GPSIMD = ("iota", "affine_select", "tensor_partition_reduce")
_DMA = ("dma_copy", "dma_transpose", "dma_compute", "sendrecv")
_EIGHT = ("max8", "nc_find_index8")
_BANK, _PARTITIONS, _WORD = 2048, 128, 4
_NOT_COMPUTE = (*_DMA, "core_barrier", "register_load", "register_store", "register_move")
_TILES = ("dst", "src", "data", "data1", "data2", "stationary", "moving", "on_true_tile", "on_true", "predicate")
"""Operands that are tiles, not numbers."""
_WRITTEN = ("dst", "reduce_res", "dst_idx")


@dataclass(frozen=True)
class Operand:
    """An operand of a call, in one turn of the loops around it, as far as known.

    Attributes:
      node, tile: what stands there, and the tile that it is or is a part of.
      shape, starts, offset, axes: as in `View`; `axes` is None where a name stands for a part of a tile.
    """

    node: ast.expr
    tile: Tile
    shape: tuple[Size, ...]
    starts: tuple[Size, ...]
    offset: Size = None
    axes: tuple[tuple[Size, Size], ...] | None = None

    @property
    def in_psum(self) -> bool:
        """True if it lies in PSUM, whatever calls the function."""
        return self.tile.spaces == {"psum"}

    @property
    def free(self) -> Size:
        """Elements per partition; None if not all sizes are known."""
        total = 1
        for size in self.shape[1:]:
            if size is None:
                return None
            total *= size
        return total if self.shape else None


def operands(module: Module, name: str | None = None) -> Iterator[tuple[str, ast.Call, dict[str, Operand]]]:
    """(instruction, call, its tiles by parameter) of every call of an instruction, or of the one named; several times where
    the loops around it have turns with other places.
    """
    for function, call, called in calls_of(module, "nisa"):
        if name in (None, called):
            given = dict(zip(POSITIONS.get(called, ()), call.args, strict=False))
            given |= {word.arg: word.value for word in call.keywords if word.arg}
            tiles = {word: module.places.tile(function, node) for word, node in given.items()}
            before: list[dict[str, Operand]] = []
            for values in module.places.turns(function, call):
                found = {
                    word: _operand(module, function, given[word], tile, values)
                    for word, tile in tiles.items()
                    if tile is not None
                }
                if found not in before:
                    before.append(found)
                    yield called, call, found


def _operand(module: Module, function: ast.FunctionDef, node: ast.expr, tile: Tile, values: Mapping[str, int]) -> Operand:
    view, part = None, module.places.written(function, node)
    if isinstance(part, ast.Subscript):
        whole = module.places.tile(function, part.value)
        view = module.places.view(function, whole, part.slice, values)
        if view is not None and whole is not None and not whole.rank:  # a part of a part: where that starts is not told
            return Operand(node, tile, view.shape, (None,) * len(view.shape))
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "ap":
        view = pattern_of(node, values)
    elif 0 < tile.rank == len(tile.shape):
        view = whole_of(tile.shape)
    if view is not None:
        return Operand(node, tile, view.shape, view.starts, view.offset, view.axes)
    return Operand(node, tile, tile.shape, (None,) * len(tile.shape))


@rule("psum-words", VERSIONS, "field reports: neuronx-cc stops at writes to PSUM that are not whole, aligned 4-byte words")
def _psum_words(module: Module) -> Found:
    for name, _, found in operands(module):
        for dst in (found[word] for word in _WRITTEN if word in found):
            width = WIDTHS.get(dst.tile.dtype)
            if not dst.in_psum or width is None:
                continue
            odd = _halved(dst, width)
            if odd:
                yield dst.node, f"nisa.{name} writes {ast.unparse(dst.node)}: {odd} of {width} bytes are no whole words"


def _halved(dst: Operand, width: int) -> str:
    """What of a write is no whole words of 4 bytes; empty if nothing is known to be."""
    if dst.axes is None:
        odd = dst.free is not None and len(dst.shape) > 1 and dst.free * width % _WORD
        return f"{dst.free} elements" if odd else ""
    if dst.offset is not None and dst.offset * width % _WORD:
        return f"{dst.offset} elements before it"
    axes, run = list(dst.axes), 1
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
    for name, call, found in operands(module):
        on_tensor = name in ("nc_matmul", "nc_matmul_mx") or (name == "nc_transpose" and _engine(module, call) == "tensor")
        for word, operand in found.items() if on_tensor else ():
            if word == "dst" and operand.tile.spaces <= {"sbuf"}:
                yield operand.node, f"nisa.{name}: dst {ast.unparse(operand.node)} is not in PSUM"
            if word in ("stationary", "moving", "data") and operand.in_psum:
                yield operand.node, f"nisa.{name}: {word} {ast.unparse(operand.node)} is in PSUM"


@rule(
    "matmul-size",
    VERSIONS,
    "nki.isa.nc_matmul: stationary [K, M], moving [K, N] -> dst [M, N]; K, M at most 128, N at most 512",
)
def _matmul_size(module: Module) -> Found:
    for _, call, found in operands(module, "nc_matmul"):
        dst, left, right = found.get("dst"), found.get("stationary"), found.get("moving")
        if any(word.arg == "perf_mode" for word in call.keywords):
            continue
        pairs = []
        if left is not None and right is not None:
            pairs.append(("K", _rows(left), _rows(right)))
        if left is not None and dst is not None:
            pairs.append(("M", left.free, _rows(dst)))
        if right is not None and dst is not None:
            pairs.append(("N", right.free, dst.free))
        for word, one, other in pairs:
            if one is not None and other is not None and one != other:
                yield call, f"nisa.nc_matmul: {word} = {one} and {other}"
        for word, size, most in (
            ("M", None if left is None else left.free, 128),
            ("N", None if right is None else right.free, 512),
        ):
            if size is not None and size > most:
                yield call, f"nisa.nc_matmul: {word} = {size} is more than {most}"


@rule("matmul-dtypes", VERSIONS, "nki.isa.nc_matmul: float32 is multiplied with float32 only")
def _matmul_dtypes(module: Module) -> Found:
    for _, call, found in operands(module, "nc_matmul"):
        types = {found[word].tile.dtype for word in ("stationary", "moving") if word in found} - {""}
        if len(types) > 1 and "float32" in types:
            yield call, f"nisa.nc_matmul: {' and '.join(sorted(types))}"


@rule("transpose-size", VERSIONS, "nki.isa.nc_transpose: data [P, F] -> dst [F, P]; at most 128 x 128, on Vector 32 x 32")
def _transpose_size(module: Module) -> Found:
    for _, call, found in operands(module, "nc_transpose"):
        dst, data = found.get("dst"), found.get("data")
        most = 32 if _engine(module, call) == "vector" else 128
        for operand in (dst, data):
            for size in (None, None) if operand is None else (_rows(operand), operand.free):
                if size is not None and size > most and operand is not None:
                    yield operand.node, f"nisa.nc_transpose: {ast.unparse(operand.node)} has {size}, more than {most}"
        if dst is not None and data is not None and _engine(module, call) == "tensor":
            for one, other in ((_rows(dst), data.free), (dst.free, _rows(data))):
                if one is not None and other is not None and one != other:
                    yield call, f"nisa.nc_transpose: dst has {one} where data has {other}"


@rule("operand-dtype", VERSIONS, "stubs of nki.isa: element types of range_select's bounds and of predicates")
def _operand_dtype(module: Module) -> Found:
    for name, _, found in operands(module):
        for word, operand in found.items():
            allowed = DTYPES.get((name, word))
            if allowed is not None and operand.tile.dtype and operand.tile.dtype not in allowed:
                yield operand.node, f"nisa.{name}: {word} is {operand.tile.dtype}, must be {' or '.join(allowed)}"


@rule(
    "operand-size", VERSIONS, "stubs of nki.isa: tiles of one size; [partitions, 1] where one value per partition is asked for"
)
def _operand_size(module: Module) -> Found:
    for name, call, found in operands(module):
        alike = [(word, found[word]) for word in ALIKE.get(name, ()) if word in found and len(found[word].shape) > 1]
        for kind in ("partitions", "elements per partition"):
            sizes = [(word, _rows(operand) if kind == "partitions" else operand.free) for word, operand in alike]
            known = [(word, each) for word, each in sizes if each is not None]
            if len({each for _, each in known}) > 1:
                yield call, f"nisa.{name}: {', '.join(f'{word} has {each}' for word, each in known)} {kind}"
        for word in COLUMNS.get(name, ()):
            operand = found.get(word)
            if operand is not None and len(operand.shape) > 1 and operand.free not in (None, 1):
                yield operand.node, f"nisa.{name}: {word} {ast.unparse(operand.node)} has {operand.free} per partition, not 1"
        most = found.get("dst") if name in _EIGHT else None
        if most is not None and len(most.shape) > 1 and most.free not in (None, 8):
            yield most.node, f"nisa.{name}: dst {ast.unparse(most.node)} has {most.free} per partition, not 8"


@rule("copied-dtype", VERSIONS, "nki.isa.tensor_copy_predicated: dst and src have one element type")
def _copied_dtype(module: Module) -> Found:
    for name, call, found in operands(module, "tensor_copy_predicated"):
        types = {found[word].tile.dtype for word in ("dst", "src") if word in found} - {""}
        if len(types) > 1:
            yield call, f"nisa.{name}: {' and '.join(sorted(types))}"


@rule("reduce-axis", VERSIONS, "nki.isa.tensor_reduce: free axes only; axis 0 runs over partitions (tensor_partition_reduce)")
def _reduce_axis(module: Module) -> Found:
    found = {id(call): tiles for _, call, tiles in operands(module, "tensor_reduce")}
    for function, call, name in calls_of(module, "nisa"):
        if name != "tensor_reduce":
            continue
        axis = next((word.value for word in call.keywords if word.arg == "axis"), call.args[3] if len(call.args) > 3 else None)
        data = found.get(id(call), {}).get("data")
        rank = len(data.shape) if data is not None else 0
        meant = None if axis is None else module.places.meant(function, axis)
        several = meant.elts if isinstance(meant, ast.Tuple | ast.List) else [meant]
        places = {number(each, values) for each in several for values in module.places.turns(function, call)[:1]}
        for place in places:
            if place is not None and (place == 0 or (rank and place == -rank)):
                yield call, f"nisa.{name}(axis={ast.unparse(axis) if axis is not None else ''}) reduces over partitions"


@rule("gpsimd-psum", VERSIONS, "architecture guide, NeuronCore-v2: GpSimd cannot access PSUM")
def _gpsimd_psum(module: Module) -> Found:
    for name, call, found in operands(module):
        if name in _ON_GPSIMD or _engine(module, call) == "gpsimd":
            for word, operand in found.items():
                if operand.in_psum:
                    yield operand.node, f"nisa.{name} runs on GpSimd and {word} {ast.unparse(operand.node)} is in PSUM"


@rule("both-in-psum", VERSIONS, "stubs of nki.isa: of two tile operands one at most is in PSUM")
def _both_in_psum(module: Module) -> Found:
    for name, call, found in operands(module):
        pair = [found[word] for word in PAIRS.get(name, ()) if word in found]
        if len(pair) == 2 and all(operand.in_psum for operand in pair):
            yield call, f"nisa.{name}: {' and '.join(PAIRS[name])} are both in PSUM"


@rule("engine-choice", VERSIONS, "stubs of nki.isa: each instruction names the engines that run it")
def _engine_choice(module: Module) -> Found:
    for name, call, _ in operands(module):
        engine = _engine(module, call)
        if name in ENGINES and engine not in ("", "unknown", *ENGINES[name]):
            yield call, f"nisa.{name}(engine={engine}): must be {' or '.join(ENGINES[name])}"


@rule("hbm-operand", VERSIONS, "architecture guide: compute engines reach SBUF and PSUM, only DMA reaches HBM")
def _hbm_operand(module: Module) -> Found:
    for function, call, name in calls_of(module, "nisa"):
        if name not in _NOT_COMPUTE and id(call) in straight_calls(function):
            given = dict(zip(POSITIONS.get(name, ()), call.args, strict=False))
            given |= {word.arg: word.value for word in call.keywords if word.arg}
            for word, node in given.items():
                if word in _TILES and module.places.is_input(function, node):
                    yield node, f"nisa.{name}: {word} {ast.unparse(node)} is an argument of the kernel, in HBM"
    for name, _, found in operands(module):
        for word, operand in found.items() if name not in _NOT_COMPUTE else ():
            if operand.tile.spaces <= {"hbm", "shared_hbm", "private_hbm"} and word != "index":
                yield operand.node, f"nisa.{name}: {word} {ast.unparse(operand.node)} is in HBM"


@rule(
    "partition-start",
    VERSIONS,
    "architecture guide: compute starts at partition 0, 32, 64 or 96; over 32 rows at 0 or 64, over 64 at 0",
)
def _partition_start(module: Module) -> Found:
    for name, _, found in operands(module):
        for operand in found.values() if name not in _DMA else ():
            first = operand.starts[0] if operand.starts else None
            rows = _rows(operand)
            if first is None or operand.tile.spaces - {"sbuf", "psum"}:
                continue
            step = 32 if rows is None or rows <= 32 else 64 if rows <= 64 else _PARTITIONS
            if first % step:
                yield operand.node, f"nisa.{name}: {ast.unparse(operand.node)} starts at partition {first}"


@rule("tile-size", VERSIONS, "architecture guide: 128 partitions; PSUM has 16 KiB each, a bank of 2 KiB per matmul")
def _tile_size(module: Module) -> Found:
    for function, call, name in calls_of(module, "nl"):
        tile = module.places.tile(function, call) if name in ("ndarray", "zeros", "ones", "full") else None
        if tile is None or not tile.shape or tile.spaces - {"sbuf", "psum"}:
            continue
        rows, free = tile.shape[0], Operand(call, tile, tile.shape, ()).free
        if rows is not None and rows > _PARTITIONS:
            yield call, f"{ast.unparse(call)}: {rows} partitions"
        if tile.spaces == {"psum"} and free is not None and free * WIDTHS.get(tile.dtype, 0) > 8 * _BANK:
            yield call, f"{ast.unparse(call)}: {free} elements per partition"


def _rows(operand: Operand) -> Size:
    return operand.shape[0] if operand.shape else None


def _engine(module: Module, call: ast.Call) -> str:
    """The engine that a call names: itself, by names that are bound once, or by a parameter that is given one engine
    everywhere; empty if it names none.
    """
    for word in call.keywords:
        if word.arg == "engine":
            text = ast.unparse(module.places.meant(module.places.home(call), word.value))
            if text.startswith("nisa."):
                return text.rpartition(".")[2].removesuffix("_engine")
    return ""
