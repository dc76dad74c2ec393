"""Reductions and scans against NumPy in float64."""

import functools

import numpy as np
import pytest
from hypothesis import strategies as st
from isa_operands import (
    DEFAULT_CASES,
    FLOATS,
    MANY_CASES,
    SMALL_INTS,
    check,
    column_operand,
    draw_free,
    draw_partitions,
    fill_for,
    integers,
    normal,
    operand,
    run,
    run_cases,
    uniform,
)

from nki_hf.chips import get_chip
from nki_hf.sim import SimOptions, launch
from nki_hf.sim import isa as nisa
from nki_hf.sim import language as nl

NAMES = (
    "tensor_reduce",
    "tensor_scalar_reduce",
    "tensor_partition_reduce",
    "tensor_scalar_cumulative",
    "tensor_tensor_scan",
    "bn_stats",
    "bn_aggr",
    "max8",
)
REDUCE = {"add": np.add, "multiply": np.multiply, "maximum": np.maximum, "minimum": np.minimum}
COMMANDS = nisa.reduce_cmd


def by_magnitude(values, *, largest):
    """The element of largest or smallest magnitude of each row, with its sign."""
    index = np.abs(values).argmax(axis=-1) if largest else np.abs(values).argmin(axis=-1)
    return np.take_along_axis(values, index[..., None], axis=-1)[..., 0]


def fill_of(op, kind):
    return uniform(0.8, 1.25) if op == "multiply" else fill_for(kind, 1.0) if kind in FLOATS else integers(0, 20)


@check("tensor_reduce")
def tensor_reduce(data):
    partitions, free = draw_partitions(data), draw_free(data)
    kept = data.draw(st.integers(0, len(free) - 1))
    op = data.draw(st.sampled_from([*REDUCE, "abs_max", "logical_and", "logical_or", "subtract"]))
    kind = data.draw(st.sampled_from(FLOATS if op == "multiply" else FLOATS + SMALL_INTS))
    negate, keepdims = data.draw(st.booleans()), data.draw(st.booleans())
    axes = tuple(range(kept + 1, len(free) + 1))
    axis = data.draw(st.sampled_from([axes, list(axes), tuple(a - len(free) - 1 for a in axes)]))
    axis = axes[0] if len(axes) == 1 and data.draw(st.booleans()) else axis
    fill = integers(-1, 1) if op.startswith("logical") and kind != "uint8" and kind != "uint16" else fill_of(op, kind)
    operands = {
        "dst": operand(data, partitions, free[:kept] or (1,), reads=False),
        "data": operand(data, partitions, free, kind, fill=fill, space=data.draw(st.sampled_from(["sbuf", "psum"]))),
    }

    def expect():
        x = operands["data"].values * 1.0
        x = x.reshape(x.shape[0], int(np.prod(free[:kept], dtype=int)), -1)
        if op in REDUCE:
            result = REDUCE[op].reduce(x, axis=-1)
        elif op == "abs_max":
            result = np.abs(by_magnitude(x, largest=True))
        elif op == "subtract":
            result = 2 * x[..., 0] - x.sum(axis=-1)
        else:
            result = ((x != 0).all(axis=-1) if op == "logical_and" else (x != 0).any(axis=-1)) * 1.0
        return {"dst": -result if negate else result}

    def body(dst, data):
        nisa.tensor_reduce(dst=dst, op=getattr(nl, op), data=data, axis=axis, negate=negate, keepdims=keepdims)
        if op == "abs_max":  # ties of equal magnitude may give either sign
            nisa.tensor_scalar(dst=dst, data=dst, op0=nl.abs, operand0=0.0, op1=nl.multiply, operand1=-1.0 if negate else 1.0)

    chip = get_chip("trn3" if op == "abs_max" else "trn2")  # comparing by magnitude needs NeuronCore-v4
    run(data, body, operands, expect, options={"chip": chip}, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("name", ["subtract", "abs_max", "abs_min", "logical_and", "logical_or", "logical_xor", "bitwise_xor"])
def test_operators_that_depend_on_the_order_reduce_several_axes_element_by_element(name, rng):
    whole = name.startswith("bitwise")
    x = rng.permutation(np.arange(-60, 60) if not name.startswith("logical") else np.arange(120) % 2).reshape(4, 5, 6)
    steps = {
        "subtract": np.subtract,
        "bitwise_xor": np.bitwise_xor,
        "logical_and": np.logical_and,
        "logical_or": np.logical_or,
        "logical_xor": np.logical_xor,
        "abs_max": lambda a, b: np.where(np.abs(a) > np.abs(b), a, b),
        "abs_min": lambda a, b: np.where(np.abs(a) < np.abs(b), a, b),
    }
    wanted = functools.reduce(steps[name], [x[:, i, j] for i in range(5) for j in range(6)])

    def kernel(a):
        kind = nl.int32 if whole else nl.float32
        tile, result = nl.load(a), nl.ndarray((4, 1), kind)
        nisa.tensor_reduce(dst=result, op=getattr(nl, name), data=tile, axis=(1, 2))
        out = nl.ndarray((4, 1), kind, buffer=nl.shared_hbm)
        nl.store(out, result)
        return out

    options = SimOptions(chip=get_chip("trn3"))
    got = launch(kernel, (x.astype(np.int32 if whole else np.float32),), options=options).outputs[0]
    np.testing.assert_array_equal(got[:, 0], wanted)


@check("tensor_scalar_reduce")
def tensor_scalar_reduce(data):
    partitions, free = draw_partitions(data), draw_free(data)
    kind, target = data.draw(st.sampled_from(FLOATS)), data.draw(st.sampled_from(FLOATS))
    op0, reduce = data.draw(st.sampled_from(["add", "multiply", "maximum"])), data.draw(st.sampled_from(sorted(REDUCE)))
    command = data.draw(st.sampled_from([COMMANDS.reset_reduce, COMMANDS.reduce, COMMANDS.load_reduce]))
    negate, number = data.draw(st.booleans()), data.draw(st.sampled_from([None, 1.25]))
    operands = {
        "dst": operand(data, partitions, free, target, reads=False),
        "data": operand(data, partitions, free, kind, fill=uniform(0.5, 1.0)),
        "c0": column_operand(data, partitions, fill=uniform(0.5, 1.0)),
        "init": column_operand(data, partitions, fill=uniform(0.5, 2.0)),
        "res": operand(data, partitions, (1,), reads=False),
    }

    def body(dst, data, c0, init, res):
        arguments = {"op0": getattr(nl, op0), "operand0": c0 if number is None else number, "reduce_op": getattr(nl, reduce)}
        if command is COMMANDS.reduce:  # first without reading the registers out, then on top of them
            nisa.tensor_scalar_reduce(dst=dst, data=data, **arguments)
        extra = {"reduce_init": init} if command is COMMANDS.load_reduce else {}
        nisa.tensor_scalar_reduce(
            dst=dst, data=data, **arguments, reduce_res=res, reduce_cmd=command, reduce_res_negate=negate, **extra
        )

    def expect():
        x, y = operands["data"].values, operands["c0"].values if number is None else number
        x = {"add": x + y, "multiply": x * y, "maximum": np.maximum(x, y)}[op0]
        folded = REDUCE[reduce].reduce(x, axis=1, keepdims=True)
        if command is COMMANDS.reduce:
            folded = REDUCE[reduce](folded, folded)
        elif command is COMMANDS.load_reduce:
            folded = REDUCE[reduce](operands["init"].values, folded)
        return {"dst": x, "res": -folded if negate else folded}

    run(data, body, operands, expect, rtol=1e-5, atol=1e-5)


@check("tensor_partition_reduce")
def tensor_partition_reduce(data):
    rows, free = data.draw(st.integers(1, 128)), draw_free(data)
    op = data.draw(st.sampled_from(["add", "maximum", "average"]))
    kind = data.draw(st.sampled_from(FLOATS))
    operands = {
        "dst": operand(data, (0, 1), free, reads=False),
        "data": operand(data, (0, rows), free, kind),
    }
    combine = {"add": np.sum, "maximum": np.max, "average": np.mean}[op]
    run(
        data,
        lambda dst, data: nisa.tensor_partition_reduce(dst=dst, op=getattr(nl, op), data=data),
        operands,
        lambda: {"dst": combine(operands["data"].values, axis=0, keepdims=True)},
        rtol=1e-5,
        atol=1e-4,
    )


@check("tensor_scalar_cumulative")
def tensor_scalar_cumulative(data):
    partitions, free = draw_partitions(data), draw_free(data)
    kind, target = data.draw(st.sampled_from(FLOATS)), data.draw(st.sampled_from(FLOATS))
    op0, op1 = data.draw(st.sampled_from(["add", "multiply"])), data.draw(st.sampled_from([*REDUCE, "subtract"]))
    command = data.draw(st.sampled_from([COMMANDS.reset_reduce, COMMANDS.reduce, COMMANDS.load_reduce]))
    number = data.draw(st.sampled_from([None, 0.5]))
    operands = {
        "dst": operand(data, partitions, free, target, reads=False),
        "src": operand(data, partitions, free, kind, fill=uniform(0.5, 1.0)),
        "c0": column_operand(data, partitions, fill=uniform(0.5, 1.0)),
        "init": column_operand(data, partitions, fill=uniform(0.5, 1.5)),
    }

    def body(dst, src, c0, init):
        arguments = {"op0": getattr(nl, op0), "op1": getattr(nl, op1), "imm0": c0 if number is None else number}
        if command is COMMANDS.reduce:
            nisa.tensor_scalar_cumulative(dst=dst, src=src, **arguments)
        extra = {"imm1": init} if command is COMMANDS.load_reduce else {}
        nisa.tensor_scalar_cumulative(dst=dst, src=src, **arguments, reduce_cmd=command, **extra)

    def expect():
        x, y = operands["src"].values, operands["c0"].values if number is None else number
        x = x + y if op0 == "add" else x * y
        start = {"add": 0.0, "subtract": 0.0, "multiply": 1.0, "maximum": -np.inf, "minimum": np.inf}[op1]
        register = operands["init"].values[:, 0] if command is COMMANDS.load_reduce else np.full(len(x), start)
        out = np.empty_like(x)
        for _ in range(2 if command is COMMANDS.reduce else 1):
            for index in range(x.shape[1]):
                register = x[:, index] - register if op1 == "subtract" else REDUCE[op1](x[:, index], register)
                out[:, index] = register
        return {"dst": out}

    run(data, body, operands, expect, rtol=1e-5, atol=1e-5)


@check("tensor_tensor_scan")
def tensor_tensor_scan(data):
    partitions, free = draw_partitions(data), draw_free(data)
    kinds = [data.draw(st.sampled_from(FLOATS)) for _ in range(3)]
    ops = [data.draw(st.sampled_from(["multiply", "add", "maximum", "subtract"])) for _ in range(2)]
    reverse = [data.draw(st.booleans()) for _ in range(2)]
    number = data.draw(st.sampled_from([None, 0.25]))
    operands = {
        "dst": operand(data, partitions, free, kinds[0], reads=False),
        "a": operand(data, partitions, free, kinds[1], fill=uniform(-1, 1)),
        "b": operand(data, partitions, free, kinds[2], fill=uniform(-1, 1)),
        "init": column_operand(data, partitions),
    }
    apply = {"multiply": lambda x, y: x * y, "add": lambda x, y: x + y, "maximum": np.maximum, "subtract": lambda x, y: x - y}

    def body(dst, a, b, init):
        nisa.tensor_tensor_scan(
            dst=dst,
            data0=a,
            data1=b,
            initial=init if number is None else number,
            op0=getattr(nl, ops[0]),
            op1=getattr(nl, ops[1]),
            reverse0=reverse[0],
            reverse1=reverse[1],
        )

    def expect():
        a, b = operands["a"].values, operands["b"].values
        state = operands["init"].values[:, 0] if number is None else np.full(len(a), number)
        out = np.empty_like(a)
        for index in range(a.shape[1]):
            inner = apply[ops[0]](state, a[:, index]) if reverse[0] else apply[ops[0]](a[:, index], state)
            state = apply[ops[1]](b[:, index], inner) if reverse[1] else apply[ops[1]](inner, b[:, index])
            out[:, index] = state
        return {"dst": out}

    run(data, body, operands, expect, rtol=2e-5, atol=2e-5)


@check("bn_stats")
def bn_stats(data):
    partitions, free = draw_partitions(data), draw_free(data, limit=64)
    kind = data.draw(st.sampled_from(FLOATS))
    operands = {
        "dst": operand(data, partitions, (6,), reads=False),
        "data": operand(data, partitions, free, kind),
    }

    def expect():
        x = operands["data"].values
        columns = []
        for part in (x[:, 0::2], x[:, 1::2]):
            n = part.shape[1]
            mean = part.mean(axis=1) if n else np.zeros(len(x))
            columns += [np.full(len(x), float(n)), mean, n * part.var(axis=1) if n else np.zeros(len(x))]
        return {"dst": np.stack(columns, axis=1)}

    run(data, lambda dst, data: nisa.bn_stats(dst=dst, data=data), operands, expect, rtol=1e-5, atol=1e-5)


@check("bn_aggr")
def bn_aggr(data):
    """Two bn_stats side by side, aggregated: mean and variance of all of their elements."""
    partitions, free = draw_partitions(data), draw_free(data, limit=64)
    kind = data.draw(st.sampled_from(FLOATS))
    operands = {
        "dst": operand(data, partitions, (2,), reads=False),
        "a": operand(data, partitions, free, kind),
        "b": operand(data, partitions, (3,), kind, fill=normal(3.0)),
        "stats": operand(data, (0, 128), (12,), plain=True),
    }

    def body(dst, a, b, stats):
        rows = a.shape[0]
        nisa.bn_stats(dst=stats[0:rows, 0:6], data=a)
        nisa.bn_stats(dst=stats[0:rows, 6:12], data=b)
        nisa.bn_aggr(dst=dst, data=stats[0:rows, :])

    def expect():
        x = np.concatenate([operands["a"].values, operands["b"].values], axis=1)
        return {"dst": np.stack([x.mean(axis=1), x.var(axis=1)], axis=1)}

    run(data, body, operands, expect, rtol=1e-5, atol=1e-5)


@check("max8")
def max8(data):
    partitions = draw_partitions(data)
    free = data.draw(st.sampled_from([(8,), (11,), (64,), (4, 5), (6, 4)]))
    kind = data.draw(st.sampled_from(FLOATS))
    operands = {
        "dst": operand(data, partitions, (8,), reads=False),
        "src": operand(data, partitions, free, kind, fill=data.draw(st.sampled_from([normal(), integers(0, 4)]))),
    }
    run(
        data,
        lambda dst, src: nisa.max8(dst=dst, src=src),
        operands,
        lambda: {"dst": -np.sort(-operands["src"].values, axis=1)[:, :8]},
        rtol=0,
        atol=0,
    )


@pytest.mark.parametrize("name", NAMES)
def test_equals_numpy_on_random_operands(name):
    run_cases(name, DEFAULT_CASES)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_equals_numpy_on_many_random_operands(name):
    run_cases(name, MANY_CASES)
