"""Patterns and selections against NumPy: iota, affine_select, range_select, select_reduce, tensor_copy_predicated."""

import numpy as np
import pytest
from hypothesis import strategies as st
from isa_operands import (
    DEFAULT_CASES,
    FLOATS,
    INTS,
    MANY_CASES,
    check,
    column_operand,
    draw_free,
    draw_partitions,
    integers,
    operand,
    run,
    run_cases,
)

from nki_hf.sim import isa as nisa
from nki_hf.sim import language as nl

NAMES = ("iota", "affine_select", "range_select", "select_reduce", "tensor_copy_predicated")
COMPARE = {
    "equal": np.equal,
    "less": np.less,
    "less_equal": np.less_equal,
    "greater": np.greater,
    "greater_equal": np.greater_equal,
}
FILL = float(np.finfo(np.float32).min)
COMMANDS = nisa.reduce_cmd


def with_nan(rng, size):
    """Normal values, a quarter of them NaN."""
    return np.where(rng.random(size) < 0.25, np.nan, rng.standard_normal(size))


def draw_pattern(data, free):
    """Steps for the flattened elements of `free`, in as many axes or in one."""
    sizes = data.draw(st.sampled_from([free, (int(np.prod(free)),)]))
    return [[data.draw(st.integers(-3, 3)), size] for size in sizes]


def affine(pattern, offset, multiplier, rows):
    """The pattern's values by the documented loops."""
    out = np.zeros((rows, *[count for _, count in pattern]), np.int64)
    for index in np.ndindex(*out.shape):
        out[index] = offset + index[0] * multiplier + sum(step * i for (step, _), i in zip(pattern, index[1:], strict=True))
    return out.reshape(rows, -1)


@check("iota")
def iota(data):
    partitions, free = draw_partitions(data), draw_free(data, limit=16)
    pattern, offset, multiplier = draw_pattern(data, free), data.draw(st.integers(-100, 100)), data.draw(st.integers(-2, 3))
    kind = data.draw(st.sampled_from([*INTS, "float32", "bfloat16"]))
    operands = {"dst": operand(data, partitions, free, kind, reads=False)}
    run(
        data,
        lambda dst: nisa.iota(dst=dst, pattern=pattern, offset=offset, channel_multiplier=multiplier),
        operands,
        lambda: {"dst": affine(pattern, offset, multiplier, partitions[1])},
    )


@check("affine_select")
def affine_select(data):
    partitions, free = draw_partitions(data), draw_free(data, limit=16)
    pattern, offset, multiplier = draw_pattern(data, free), data.draw(st.integers(-8, 8)), data.draw(st.integers(-2, 2))
    compare = data.draw(st.sampled_from(sorted(COMPARE)))
    kind = data.draw(st.sampled_from(FLOATS))
    in_place, value = data.draw(st.booleans()), data.draw(st.sampled_from([0.0, -1.5, FILL]))
    target = kind if in_place else data.draw(st.sampled_from(FLOATS))
    operands = {
        "dst": operand(data, partitions, free, target, fill=with_nan, reads=False),
        "tile": operand(data, partitions, free, kind, fill=with_nan),
    }

    def body(dst, tile):
        nisa.affine_select(
            dst=dst,
            pattern=pattern,
            channel_multiplier=multiplier,
            on_true_tile=dst if in_place else tile,
            on_false_value=value,
            cmp_op=getattr(nl, compare),
            offset=offset,
        )

    def expect():
        mask = COMPARE[compare](affine(pattern, offset, multiplier, partitions[1]), 0)
        source = operands["dst" if in_place else "tile"].values
        return {"dst": np.where(mask, source, value)}

    run(data, body, operands, expect)


@check("range_select")
def range_select(data):
    partitions, free = draw_partitions(data), draw_free(data)
    total = int(np.prod(free))
    compares = [data.draw(st.sampled_from(sorted(COMPARE))) for _ in range(2)]
    start = data.draw(st.sampled_from([0, 5, -3]))
    command = data.draw(st.sampled_from([COMMANDS.reset_reduce, COMMANDS.reduce]))
    bounds = integers(start - 2, start + total + 2)
    operands = {
        "dst": operand(data, partitions, free, data.draw(st.sampled_from(["float32", "bfloat16"])), reads=False),
        "tile": operand(
            data, partitions, free, data.draw(st.sampled_from(FLOATS)), space=data.draw(st.sampled_from(["sbuf", "psum"]))
        ),
        "low": column_operand(data, partitions, fill=bounds),
        "high": column_operand(data, partitions, fill=bounds),
        "res": operand(data, partitions, (1,), reads=False),
    }

    def body(dst, tile, low, high, res):
        arguments = {
            "comp_op0": getattr(nl, compares[0]),
            "comp_op1": getattr(nl, compares[1]),
            "bound0": low,
            "bound1": high,
            "range_start": start,
            "on_false_value": FILL,
        }
        if command is COMMANDS.reduce:
            nisa.range_select(dst=dst, on_true_tile=tile, **arguments)
        nisa.range_select(dst=dst, on_true_tile=tile, **arguments, reduce_res=res, reduce_cmd=command, reduce_op=nl.maximum)

    def expect():
        x, index = operands["tile"].values, start + np.arange(total)
        mask = COMPARE[compares[0]](index, operands["low"].values) & COMPARE[compares[1]](index, operands["high"].values)
        selected = np.where(mask, x, FILL)
        return {"dst": selected, "res": selected.max(axis=1)}

    run(data, body, operands, expect, rtol=0, atol=0)


@check("select_reduce")
def select_reduce(data):
    partitions, free = draw_partitions(data), draw_free(data)
    number, reverse = data.draw(st.sampled_from([None, -2.5])), data.draw(st.booleans())
    command = data.draw(st.sampled_from([COMMANDS.idle, COMMANDS.reset_reduce, COMMANDS.reduce]))
    spaces = data.draw(st.sampled_from([("sbuf", "sbuf"), ("psum", "sbuf"), ("sbuf", "psum")]))
    operands = {
        "dst": operand(data, partitions, free, data.draw(st.sampled_from(FLOATS)), reads=False),
        "predicate": operand(
            data,
            partitions,
            free,
            data.draw(st.sampled_from(["int8", "uint8", "int16", "uint16"])),
            fill=integers(0, 2),
            space=spaces[0],
        ),
        "on_true": operand(data, partitions, free, data.draw(st.sampled_from(FLOATS)), space=spaces[1]),
        "on_false": column_operand(data, partitions),
        "res": operand(data, partitions, (1,), reads=False),
    }

    def body(dst, predicate, on_true, on_false, res):
        arguments = {
            "dst": dst,
            "predicate": predicate,
            "on_true": on_true,
            "on_false": on_false if number is None else number,
            "reverse_pred": reverse,
            "reduce_op": nl.maximum,
        }
        if command is COMMANDS.reduce:
            nisa.select_reduce(**arguments, reduce_cmd=COMMANDS.reset_reduce)
        if command is COMMANDS.idle:
            nisa.select_reduce(**arguments)
        else:
            nisa.select_reduce(**arguments, reduce_res=res, reduce_cmd=command)

    def expect():
        mask = operands["predicate"].values != 0
        other = operands["on_false"].values if number is None else number
        selected = np.where(mask ^ reverse, operands["on_true"].values, other)
        return {"dst": selected} if command is COMMANDS.idle else {"dst": selected, "res": selected.max(axis=1)}

    run(data, body, operands, expect, rtol=0, atol=0)


@check("tensor_copy_predicated")
def tensor_copy_predicated(data):
    partitions, free = draw_partitions(data), draw_free(data)
    kind, reverse = data.draw(st.sampled_from([*FLOATS, *INTS])), data.draw(st.booleans())
    number = data.draw(st.sampled_from([None, 3.0]))
    spaces = data.draw(st.sampled_from([("sbuf", "sbuf"), ("psum", "sbuf"), ("sbuf", "psum")]))
    fill = with_nan if kind in FLOATS else None
    operands = {
        "dst": operand(data, partitions, free, kind, fill=fill, reads=False),
        "src": operand(data, partitions, free, kind, fill=fill, space=spaces[0]),
        "predicate": operand(
            data,
            partitions,
            free,
            data.draw(st.sampled_from(["uint8", "uint16", "uint32"])),
            fill=integers(0, 2),
            space=spaces[1],
        ),
    }

    def body(dst, src, predicate):
        source = src if number is None else number
        nisa.tensor_copy_predicated(dst=dst, src=source, predicate=predicate, reverse_pred=reverse)

    def expect():
        mask = (operands["predicate"].values != 0) ^ reverse
        source = operands["src"].raw if number is None else np.array(number).astype(operands["dst"].raw.dtype)
        return {"dst": np.where(mask, source, operands["dst"].raw)}

    run(data, body, operands, expect, exact=("dst",))


@pytest.mark.parametrize("name", NAMES)
def test_equals_numpy_on_random_operands(name):
    run_cases(name, DEFAULT_CASES)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_equals_numpy_on_many_random_operands(name):
    run_cases(name, MANY_CASES)
