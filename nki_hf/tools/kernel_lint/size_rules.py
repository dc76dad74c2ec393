"""Sizes, axes and element types of operands, where the stubs of nki.isa (0.6) limit them; see memory_rules.py."""

from __future__ import annotations

from nki_hf.tools.kernel_lint.operands import ALIKE, COLUMNS, DTYPES, ONE_DTYPE, engine_of, operands
from nki_hf.tools.kernel_lint.rule import VERSIONS, Found, Module, rule

_EIGHT = ("max8", "nc_find_index8")


@rule(
    "matmul-size",
    VERSIONS,
    "nki.isa.nc_matmul: stationary [K, M], moving [K, N] -> dst [M, N]; K, M at most 128, N at most 512",
)
def _matmul_size(module: Module) -> Found:
    for use, found in operands(module, "nc_matmul"):
        dst, left, right = found.get("dst"), found.get("stationary"), found.get("moving")
        if use.given.get("perf_mode") is not None:
            continue
        pairs = []
        if left is not None and right is not None:
            pairs.append(("K", left.rows, right.rows))
        if left is not None and dst is not None:
            pairs.append(("M", left.free, dst.rows))
        if right is not None and dst is not None:
            pairs.append(("N", right.free, dst.free))
        for word, one, other in pairs:
            if one is not None and other is not None and one != other:
                yield use.call, f"nisa.nc_matmul: {word} = {one} and {other}"
        for word, operand, most in (("M", left, 128), ("N", right, 512)):
            if operand is not None and operand.free is not None and operand.free > most:
                yield use.call, f"nisa.nc_matmul: {word} = {operand.free} is more than {most}"


@rule("matmul-dtypes", VERSIONS, "nki.isa.nc_matmul: float32 is multiplied with float32 only")
def _matmul_dtypes(module: Module) -> Found:
    for use, found in operands(module, "nc_matmul"):
        types = {found[word].tile.dtype for word in ("stationary", "moving") if word in found} - {""}
        if len(types) > 1 and "float32" in types:
            yield use.call, f"nisa.nc_matmul: {' and '.join(sorted(types))}"


@rule("transpose-size", VERSIONS, "nki.isa.nc_transpose: data [P, F] -> dst [F, P]; at most 128 x 128, on Vector 32 x 32")
def _transpose_size(module: Module) -> Found:
    for use, found in operands(module, "nc_transpose"):
        dst, data = found.get("dst"), found.get("data")
        most = 32 if engine_of(use) == "vector" else 128
        for operand in (dst, data):
            for size in () if operand is None else (operand.rows, operand.free):
                if size is not None and size > most and operand is not None:
                    yield operand.node, f"nisa.nc_transpose: {operand.text} has {size}, more than {most}"
        if dst is not None and data is not None and engine_of(use) in ("tensor", "", "unknown"):
            for one, other in ((dst.rows, data.free), (dst.free, data.rows)):
                if one is not None and other is not None and one != other:
                    yield use.call, f"nisa.nc_transpose: dst has {one} where data has {other}"


@rule("operand-dtype", VERSIONS, "stubs of nki.isa: element types of operands: predicates, bounds, indices, seeds")
def _operand_dtype(module: Module) -> Found:
    for use, found in operands(module):
        for word, operand in found.items():
            allowed = DTYPES.get((use.name, word))
            if allowed is not None and operand.tile.dtype and operand.tile.dtype not in allowed:
                yield operand.node, f"nisa.{use.name}: {word} is {operand.tile.dtype}, must be {' or '.join(allowed)}"


@rule(
    "operand-size", VERSIONS, "stubs of nki.isa: tiles of one size; [partitions, 1] where one value per partition is asked for"
)
def _operand_size(module: Module) -> Found:
    for use, found in operands(module):
        alike = [(word, found[word]) for word in ALIKE.get(use.name, ()) if word in found and not found[word].flat]
        for kind in ("partitions", "elements per partition"):
            sizes = [(word, operand.rows if kind == "partitions" else operand.free) for word, operand in alike]
            known = [(word, each) for word, each in sizes if each is not None]
            if len({each for _, each in known}) > 1:
                yield use.call, f"nisa.{use.name}: {', '.join(f'{word} has {each}' for word, each in known)} {kind}"
        for word in COLUMNS.get(use.name, ()):
            operand = found.get(word)
            if operand is not None and not operand.flat and operand.free not in (None, 1):
                yield operand.node, f"nisa.{use.name}: {word} {operand.text} has {operand.free} per partition, not 1"
        most = found.get("dst") if use.name in _EIGHT else None
        if most is not None and not most.flat and most.free not in (None, 8):
            yield most.node, f"nisa.{use.name}: dst {most.text} has {most.free} per partition, not 8"


@rule("copied-dtype", VERSIONS, "stubs of nki.isa: operands with one element type, as dst and src of a predicated copy")
def _copied_dtype(module: Module) -> Found:
    for use, found in operands(module):
        types = {found[word].tile.dtype for word in ONE_DTYPE.get(use.name, ()) if word in found} - {""}
        if len(types) > 1:
            yield use.call, f"nisa.{use.name}: {' and '.join(sorted(types))}"


@rule("reduce-axis", VERSIONS, "nki.isa.tensor_reduce: free axes only; axis 0 runs over partitions (tensor_partition_reduce)")
def _reduce_axis(module: Module) -> Found:
    for use, found in operands(module, "tensor_reduce"):
        axis, data = use.given.get("axis"), found.get("data")
        rank = 0 if data is None or data.tile.shape is None or not data.tile.rows else len(data.tile.shape)
        for place in axis if isinstance(axis, tuple | list) else (axis,):
            if type(place) is int and (place == 0 or (rank and place == -rank)):
                yield use.call, f"nisa.{use.name}(axis={axis}) reduces over partitions"
