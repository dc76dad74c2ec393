"""Element-wise instructions against NumPy in float64: tensor_tensor, tensor_scalar, scalar_tensor_tensor, reciprocal."""

import numpy as np
import pytest
from hypothesis import strategies as st
from isa_operands import (
    DEFAULT_CASES,
    FLOATS,
    INTS,
    MANY_CASES,
    SMALL_INTS,
    check,
    column_operand,
    draw_free,
    draw_partitions,
    fill_for,
    integers,
    operand,
    run,
    run_cases,
    uniform,
)

from nki_hf.chips import get_chip
from nki_hf.sim import isa as nisa
from nki_hf.sim import language as nl

REFERENCE = {
    "add": lambda x, y: x + y,
    "subtract": lambda x, y: x - y,
    "multiply": lambda x, y: x * y,
    "divide": lambda x, y: x / y,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "abs_max": lambda x, y: np.where(np.abs(x) > np.abs(y), x, y),
    "abs_min": lambda x, y: np.where(np.abs(x) < np.abs(y), x, y),
    "equal": lambda x, y: (x == y) * 1.0,
    "not_equal": lambda x, y: (x != y) * 1.0,
    "less": lambda x, y: (x < y) * 1.0,
    "less_equal": lambda x, y: (x <= y) * 1.0,
    "greater": lambda x, y: (x > y) * 1.0,
    "greater_equal": lambda x, y: (x >= y) * 1.0,
    "logical_and": lambda x, y: ((x != 0) & (y != 0)) * 1.0,
    "logical_or": lambda x, y: ((x != 0) | (y != 0)) * 1.0,
    "logical_xor": lambda x, y: ((x != 0) ^ (y != 0)) * 1.0,
}
CONTINUOUS = ("add", "subtract", "multiply", "maximum", "minimum", "abs_max", "abs_min")
NAMES = ("tensor_tensor", "tensor_scalar", "scalar_tensor_tensor", "reciprocal")


def on_trn3(*ops):
    """Options of a run with these operators: comparing by magnitude needs NeuronCore-v4."""
    return {"chip": get_chip("trn3")} if {"abs_max", "abs_min"} & set(ops) else None


def value(data, fill):
    """An immediate, rounded to float32, or None: then the operand is a tile."""
    return data.draw(st.sampled_from([None, float(np.float32(fill))]))


@check("tensor_tensor")
def tensor_tensor(data):
    op = data.draw(st.sampled_from(sorted(REFERENCE)))
    types = FLOATS + SMALL_INTS
    names = {key: data.draw(st.sampled_from(types)) for key in ("dst", "data1", "data2")}
    partitions = draw_partitions(data)
    free = draw_free(data)
    total = int(np.prod(free))
    other = data.draw(st.sampled_from([free, (total,)]))  # shapes may differ, the elements per partition may not
    spaces = data.draw(st.sampled_from([("sbuf", "sbuf", "sbuf"), ("psum", "sbuf", "sbuf"), ("sbuf", "psum", "sbuf")]))
    fills = {key: fill_for(kind) for key, kind in names.items()}
    if op == "divide":
        names["data2"], fills["data2"] = "float32", uniform(0.5, 2)
    if op in ("equal", "not_equal"):
        fills["data1"] = fills["data2"] = integers(0, 1)
    operands = {
        "dst": operand(data, partitions, free, names["dst"], reads=False, space=spaces[0]),
        "data1": operand(data, partitions, other, names["data1"], fill=fills["data1"], space=spaces[1]),
        "data2": operand(data, partitions, free, names["data2"], fill=fills["data2"], space=spaces[2]),
    }
    run(
        data,
        lambda dst, data1, data2: nisa.tensor_tensor(dst=dst, data1=data1, data2=data2, op=getattr(nl, op)),
        operands,
        options=on_trn3(op),
        expect=lambda: {"dst": REFERENCE[op](operands["data1"].values * 1.0, operands["data2"].values * 1.0)},
    )


@check("tensor_scalar")
def tensor_scalar(data):
    partitions, free = draw_partitions(data), draw_free(data)
    kind, target = data.draw(st.sampled_from(FLOATS + SMALL_INTS)), data.draw(st.sampled_from(FLOATS + SMALL_INTS))
    ops = [data.draw(st.sampled_from(CONTINUOUS)), data.draw(st.sampled_from((None, *sorted(REFERENCE))))]
    ops[1] = "add" if ops[1] in ("divide", "equal", "not_equal") else ops[1]
    reverse = [data.draw(st.booleans()), data.draw(st.booleans())]
    numbers = [value(data, 1.5), value(data, -0.75)]
    operands = {
        "dst": operand(data, partitions, free, target, reads=False),
        "data": operand(data, partitions, free, kind, space=data.draw(st.sampled_from(["sbuf", "psum"]))),
        "c0": column_operand(data, partitions),
        "c1": column_operand(data, partitions),
    }

    def body(dst, data, c0, c1):
        nisa.tensor_scalar(
            dst=dst,
            data=data,
            op0=getattr(nl, ops[0]),
            operand0=c0 if numbers[0] is None else numbers[0],
            reverse0=reverse[0],
            op1=None if ops[1] is None else getattr(nl, ops[1]),
            operand1=None if ops[1] is None else c1 if numbers[1] is None else numbers[1],
            reverse1=ops[1] is not None and reverse[1],
        )

    def expect():
        x = operands["data"].values * 1.0
        for op, number, key, swap in zip(ops, numbers, ("c0", "c1"), reverse, strict=True):
            if op is not None:
                y = operands[key].values if number is None else number
                # a comparison must see the float32 that the engine compares
                x = x.astype(np.float32).astype(np.float64) if op in REFERENCE and op not in CONTINUOUS else x
                x = REFERENCE[op](y, x) if swap else REFERENCE[op](x, y)
        return {"dst": x}

    run(data, body, operands, expect, options=on_trn3(*ops), rtol=4e-6, atol=4e-6 * (1000 if kind in INTS else 1))


@check("scalar_tensor_tensor")
def scalar_tensor_tensor(data):
    partitions, free = draw_partitions(data), draw_free(data)
    ops = [data.draw(st.sampled_from(CONTINUOUS)) for _ in range(2)]
    reverse = [data.draw(st.booleans()) for _ in range(2)]
    number = value(data, 0.375)
    kinds = [data.draw(st.sampled_from(FLOATS)) for _ in range(3)]
    operands = {
        "dst": operand(data, partitions, free, kinds[0], reads=False),
        "data": operand(data, partitions, free, kinds[1], space=data.draw(st.sampled_from(["sbuf", "psum"]))),
        "c0": column_operand(data, partitions),
        "other": operand(data, partitions, free, kinds[2]),
    }

    def body(dst, data, c0, other):
        nisa.scalar_tensor_tensor(
            dst=dst,
            data=data,
            op0=getattr(nl, ops[0]),
            operand0=c0 if number is None else number,
            op1=getattr(nl, ops[1]),
            operand1=other,
            reverse0=reverse[0],
            reverse1=reverse[1],
        )

    def expect():
        x, y = operands["data"].values, operands["c0"].values if number is None else number
        x = REFERENCE[ops[0]](y, x) if reverse[0] else REFERENCE[ops[0]](x, y)
        z = operands["other"].values
        return {"dst": REFERENCE[ops[1]](z, x) if reverse[1] else REFERENCE[ops[1]](x, z)}

    run(data, body, operands, expect, options=on_trn3(*ops), rtol=4e-6, atol=4e-6)


@check("reciprocal")
def reciprocal(data):
    partitions, free = draw_partitions(data), draw_free(data)
    kinds = [data.draw(st.sampled_from(FLOATS)) for _ in range(2)]
    operands = {
        "dst": operand(data, partitions, free, kinds[0], reads=False),
        "data": operand(data, partitions, free, kinds[1], fill=uniform(0.25, 4)),
    }
    run(
        data,
        lambda dst, data: nisa.reciprocal(dst=dst, data=data),
        operands,
        lambda: {"dst": 1 / operands["data"].values},
    )


@pytest.mark.parametrize("name", NAMES)
def test_equals_numpy_on_random_operands(name):
    run_cases(name, DEFAULT_CASES)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_equals_numpy_on_many_random_operands(name):
    run_cases(name, MANY_CASES)
