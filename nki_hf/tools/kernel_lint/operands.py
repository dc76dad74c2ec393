"""Operands of instructions: memory, element type and size, where the documents limit them and the source shows them.

Sources are the stubs of nki.isa (0.6) and the architecture guides; the rules hold for every front end, because it is the
compiler that refuses.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from nki_hf.tools.kernel_lint.calls import calls_of
from nki_hf.tools.kernel_lint.places import Tile
from nki_hf.tools.kernel_lint.rule import VERSIONS, Found, Module, rule
from nki_hf.tools.kernel_lint.sizes import Size, number
from nki_hf.tools.kernel_lint.source import last_name

WIDTHS = {
    "float32": 4, "int32": 4, "uint32": 4, "tfloat32": 4, "bfloat16": 2, "float16": 2, "int16": 2, "uint16": 2, "int8": 1,
    "uint8": 1, "bool_": 1, "float8_e4m3": 1, "float8_e4m3fn": 1, "float8_e5m2": 1,
}  # fmt: skip
"""Bytes of an element."""

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
_BANK, _PARTITIONS = 2048, 128


@dataclass(frozen=True)
class Operand:
    """An operand of a call: its node, tile, shape and first places, as far as known."""

    node: ast.expr
    tile: Tile
    shape: tuple[Size, ...]
    starts: tuple[Size, ...]

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
    """(instruction, call, its tiles by parameter) of every call of an instruction, or of the one named."""
    for function, call, called in calls_of(module, "nisa"):
        if name in (None, called):
            given = dict(zip(POSITIONS.get(called, ()), call.args, strict=False))
            given |= {word.arg: word.value for word in call.keywords if word.arg}
            found = {}
            for word, node in given.items():
                tile = module.places.tile(function, node)
                if tile is not None:
                    found[word] = _operand(module, function, node, tile)
            yield called, call, found


def _operand(module: Module, function: ast.FunctionDef, node: ast.expr, tile: Tile) -> Operand:
    if isinstance(node, ast.Subscript):
        whole = module.places.tile(function, node.value)
        view = module.places.view(function, whole, node.slice)
        if view is not None:
            return Operand(node, tile, *view)
    return Operand(node, tile, tile.shape, (0,) * len(tile.shape) if isinstance(node, ast.Call) else (None,) * len(tile.shape))


@rule("psum-words", VERSIONS, "field reports: neuronx-cc stops at writes to PSUM that are not whole, aligned 4-byte words")
def _psum_words(module: Module) -> Found:
    for name, _, found in operands(module):
        dst = found.get("dst")
        if dst is None or not dst.in_psum or not dst.shape or dst.tile.dtype not in WIDTHS:
            continue
        width, last = WIDTHS[dst.tile.dtype], dst.shape[-1]
        start = dst.starts[-1] if len(dst.starts) > 1 else None
        row = dst.tile.shape[-1] if dst.tile.shape else None
        odd = [size for size in (last, start) if size is not None and size * width % 4]
        odd += [row for _ in range(1) if row is not None and len(dst.tile.shape) > 2 and row * width % 4]
        if len(dst.shape) > 1 and odd:
            yield dst.node, f"nisa.{name} writes {ast.unparse(dst.node)}: {odd[0]} elements of {width} bytes are no whole words"


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
        data = found[id(call)].get("data")
        rank = len(data.shape) if data is not None else 0
        several = axis.elts if isinstance(axis, ast.Tuple | ast.List) else [axis]
        for each in several:
            place = number(each, module.places.constants(function))
            if place is not None and (place == 0 or (rank and place == -rank)):
                yield call, f"nisa.{name}(axis={ast.unparse(each) if each is not None else ''}) reduces over partitions"


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
    for name, _, found in operands(module):
        for word, operand in found.items() if name not in _DMA else ():
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
    """The engine that a call names, itself or by a name that is bound once in the file; empty if it names none."""
    for word in call.keywords:
        if word.arg == "engine":
            value = _bound_once(module, word.value.id) if isinstance(word.value, ast.Name) else word.value
            if value is not None and ast.unparse(value).startswith("nisa."):
                return last_name(value).removesuffix("_engine")
    return ""


def _bound_once(module: Module, name: str) -> ast.expr | None:
    nodes = list(ast.walk(module.source.tree))
    stores = sum(isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store) for node in nodes)
    if stores != 1 or any(isinstance(node, ast.arg) and node.arg == name for node in nodes):
        return None
    for node in nodes:
        if isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == [name]:
            return node.value
    return None
