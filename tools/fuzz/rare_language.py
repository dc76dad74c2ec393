"""Functions of `nki.language` on tiles, what makes tensors, and what a kernel is told of itself."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from nki_hf.sim import isa as nisa
from nki_hf.sim import language as nl
from tools.fuzz.kernel_programs import Step
from tools.fuzz.rare_site import UNIT, Array, Draw, Rare, Seen, Site, flat_of, typed

__all__ = ["LANGUAGE"]

Result = tuple[Array, Any]
_erf = np.vectorize(math.erf, otypes=[np.float64])
_erfc = np.vectorize(math.erfc, otypes=[np.float64])


# ---- operators that are called --------------------------------------------------------------------------------------


def _as_float(compare: Any) -> Any:
    return lambda x, y: compare(x, y).astype(np.float64)


_BINARY: dict[str, Any] = {
    "add": np.add, "subtract": np.subtract, "multiply": np.multiply, "divide": np.divide, "maximum": np.maximum,
    "minimum": np.minimum, "power": np.power, "equal": _as_float(np.equal), "not_equal": _as_float(np.not_equal),
    "less": _as_float(np.less), "less_equal": _as_float(np.less_equal), "greater": _as_float(np.greater),
    "greater_equal": _as_float(np.greater_equal), "logical_and": _as_float(np.logical_and),
    "logical_or": _as_float(np.logical_or), "logical_xor": _as_float(np.logical_xor), "fmod": np.fmod, "mod": np.mod,
    "abs_max": lambda x, y: np.where(np.abs(x) > np.abs(y), x, y),
    "abs_min": lambda x, y: np.where(np.abs(x) < np.abs(y), x, y),
}  # fmt: skip
_ROUNDED = ("power",)
_BITS: dict[str, Any] = {
    "bitwise_and": np.bitwise_and,
    "bitwise_or": np.bitwise_or,
    "bitwise_xor": np.bitwise_xor,
    "left_shift": np.left_shift,
    "right_shift": np.right_shift,
}


def _phi(x: Array) -> Array:
    return 0.5 * _erfc(-x / math.sqrt(2))


def _sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


_UNARY: dict[str, Any] = {
    "abs": np.abs, "negative": np.negative, "copy": lambda x: x, "floor": np.floor, "ceil": np.ceil, "trunc": np.trunc,
    "sign": np.sign, "square": np.square, "relu": lambda x: np.maximum(x, 0), "logical_not": lambda x: (x == 0) * 1.0,
    "exp": np.exp, "log": np.log, "sqrt": np.sqrt, "rsqrt": lambda x: 1 / np.sqrt(x), "reciprocal": lambda x: 1 / x,
    "tanh": np.tanh, "sigmoid": _sigmoid, "sin": np.sin, "cos": np.cos, "tan": np.tan, "arctan": np.arctan, "erf": _erf,
    "erf_dx": lambda x: 2 / math.sqrt(math.pi) * np.exp(-x * x), "gelu": lambda x: x * _phi(x),
    "gelu_dx": lambda x: _phi(x) + x * np.exp(-x * x / 2) / math.sqrt(2 * math.pi),
    "gelu_apprx_tanh": lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "gelu_apprx_sigmoid": lambda x: x * _sigmoid(1.702 * x),
    "gelu_apprx_sigmoid_dx": lambda x: _sigmoid(1.702 * x) * (1 + 1.702 * x * (1 - _sigmoid(1.702 * x))),
    "silu": lambda x: x * _sigmoid(x), "silu_dx": lambda x: _sigmoid(x) * (1 + x * (1 - _sigmoid(x))),
    "softplus": lambda x: np.logaddexp(x, 0.0), "mish": lambda x: x * np.tanh(np.logaddexp(x, 0.0)),
}  # fmt: skip
_EXACT = ("abs", "negative", "copy", "floor", "ceil", "trunc", "sign", "relu", "logical_not")
_RANGE = {"floor": 2.0**30, "ceil": 2.0**30, "trunc": 2.0**30, "sin": 1e3, "cos": 1e3, "tan": 1.4}
"""What |x| may be: rounding goes through int32, and an angle far from 0 loses its digits."""
_TYPES = (None, None, "bfloat16", "float16", "float32")


def _draw_binary(draw: Draw) -> Step:
    return {
        "form": draw.pick("tiles", "number", "reversed", "column", "bits", "mixed"),
        "alu": draw.pick(*_BINARY),
        "bits": draw.pick(*_BITS),
        "operand": draw.number(),
        "other": draw.reading(),
        "kind": draw.pick(*_TYPES),
        "kinds": [draw.pick("float32", "bfloat16", "float16", "int32", "uint8") for _ in range(2)],
    }


def _issue_binary(site: Site) -> Any:
    step = site.step
    dtype = {} if step["kind"] is None else {"dtype": getattr(nl, step["kind"])}
    if step["form"] == "bits":
        one, two = site.ints(site.p, 8, 251, nl.uint16), site.ints(site.p, 8, 8, nl.uint16)
        return getattr(nl, step["bits"])(one, two)
    call = getattr(nl, step["alu"])
    if step["form"] == "mixed":
        return call(*(site.flat(name, getattr(nl, kind)) for name, kind in zip(("data", "other"), step["kinds"], strict=True)))
    one = site.flat()
    if step["form"] == "number":
        return call(one, step["operand"], **dtype)
    if step["form"] == "reversed":
        return call(step["operand"], one, **dtype)
    return call(one, site.operand("c0") if step["form"] == "column" else site.flat("other"), **dtype)


def _promoted(first: str, second: str) -> str:
    """A float before an integer, else the wider one; two types of one width give float32 or int32."""
    if first == second:
        return first
    floats = [kind for kind in (first, second) if "float" in kind]
    if len(floats) == 1:
        return floats[0]
    sizes = {"float32": 4, "bfloat16": 2, "float16": 2, "int32": 4, "uint8": 1}
    if sizes[first] == sizes[second]:
        return "float32" if floats else "int32"
    return first if sizes[first] > sizes[second] else second


def _model_binary(seen: Seen) -> Result:
    step, kind = seen.step, seen.step["kind"]
    if step["form"] == "bits":
        return _BITS[step["bits"]](*(seen.ints(seen.p, 8, below).astype(np.uint16) for below in (251, 8))), 0
    if step["form"] == "mixed":
        kinds = step["kinds"]
        one, two = (typed(seen.raw(name), kind) for name, kind in zip(("data", "other"), kinds, strict=True))
        kind = seen.kind = _promoted(*kinds)
        if kinds == ["int32", "int32"]:  # whole numbers are exact on GpSimd; shares of them are not
            if step["alu"] in ("divide", "power", "fmod", "mod"):
                return np.zeros((seen.p, seen.n)), np.full((seen.p, seen.n), np.inf)
            return _BINARY[step["alu"]](one.astype(np.int64), two.astype(np.int64)).astype(np.int64).astype(np.int32), 0
        one, two = (each.astype(np.float32).astype(np.float64) for each in (one, two))
    else:
        seen.kind = kind or "float32"
        one = seen.wide()
        two = seen.operand("c0").astype(np.float64) if step["form"] == "column" else np.full_like(one, step["operand"])
        two = seen.wide("other") if step["form"] == "tiles" else two
        if step["form"] == "reversed":
            one, two = two, one
    found = np.broadcast_to(_BINARY[step["alu"]](one, two), (seen.p, seen.n))
    if step["alu"] in _ROUNDED:
        return found, (16 * UNIT + (2.0**-7 if kind is not None else 0.0)) * np.abs(found) + 2.0**-126
    return (found if kind is None else typed(found, kind)), 0


def _draw_unary(draw: Draw) -> Step:
    return {"function": draw.pick(*_UNARY, "invert"), "kind": draw.pick(*_TYPES), "spread": draw.pick(1.0, 0.1, 40.0)}


def _issue_unary(site: Site) -> Any:
    step = site.step
    if step["function"] == "invert":
        return nl.invert(site.ints(site.p, 8, 251, nl.uint16))
    data = site.flat()
    if step["function"] in ("log", "sqrt", "rsqrt", "reciprocal"):
        nisa.tensor_scalar(dst=data, data=data, op0=nl.abs_max if site.program["chip"] == "trn3" else nl.maximum, operand0=0.5)
    nisa.tensor_scalar(dst=data, data=data, op0=nl.multiply, operand0=step["spread"])
    return (
        getattr(nl, step["function"])(data)
        if step["kind"] is None
        else getattr(nl, step["function"])(data, dtype=getattr(nl, step["kind"]))
    )


def _model_unary(seen: Seen) -> Result:
    step, name = seen.step, seen.step["function"]
    if name == "invert":
        return ~seen.ints(seen.p, 8, 251).astype(np.uint16), 0
    seen.kind = step["kind"] or "float32"
    x = seen.data.astype(np.float32)
    if name in ("log", "sqrt", "rsqrt", "reciprocal"):
        half = np.float32(0.5)
        x = np.where(np.abs(x) > half, x, half) if step["chip"] == "trn3" else np.maximum(x, half)
    x = (x * np.float32(step["spread"])).astype(np.float64)
    found = _UNARY[name](x)
    if name in _EXACT:
        slack = np.zeros(found.shape)
    elif name in ("sin", "cos", "tan"):  # turns are taken off in float32
        slack = 64 * UNIT * (1 + np.abs(found)) ** 2 * (1 + np.abs(x))
    else:
        slack = 64 * UNIT * (np.abs(found) + np.minimum(np.abs(x), 30.0) * np.minimum(1.0, np.abs(found) + 0.1)) + 2.0**-126
    if step["kind"] in ("bfloat16", "float16"):
        slack = slack + 2.0 ** (-8 if step["kind"] == "bfloat16" else -11) * np.abs(found) * (name not in _EXACT)
    return found, np.where(np.abs(x) < _RANGE.get(name, 1e4), slack, np.inf)


# ---- reductions and what takes several instructions ------------------------------------------------------------------


def _draw_folded(draw: Draw) -> Step:
    return {
        "function": draw.pick("sum", "prod", "max", "min", "mean", "var", "all", "softmax", "rms_norm", "where"),
        "axis": draw.pick(2, -1, (1, 2), (-1, -2)),
        "kept": draw.flag(),
        "kind": draw.pick(*_TYPES),
        "number": draw.flag(),
        "epsilon": draw.pick(1e-6, 0.5),
        "between": draw.pick(None, "bfloat16"),
        "operand": draw.number(),
    }


def _issue_folded(site: Site) -> Any:
    """Of `[p, 2, n]`, the data and its half, along the last axis or both."""
    step, pair = site.step, site.fresh(site.p, 2, site.n)
    nisa.tensor_copy(dst=pair[:, 0], src=site.flat())
    nisa.tensor_scalar(dst=pair[:, 1], data=pair[:, 0], op0=nl.multiply, operand0=0.5)
    name, dtype = step["function"], {} if step["kind"] is None else {"dtype": getattr(nl, step["kind"])}
    if name == "softmax":
        found = nl.softmax(pair, **dtype) if step["axis"] == -1 else nl.softmax(pair, axis=step["axis"], **dtype)
    elif name == "where":
        chosen = nl.greater(pair, 0.0)
        found = nl.where(chosen, step["operand"] if step["number"] else pair, nl.negative(pair), **dtype)
    elif name == "rms_norm":
        more = {} if step["between"] is None else {"compute_dtype": nl.bfloat16}
        weight = nl.full((site.p, 1, site.n), 0.5, nl.float32)
        found = nl.rms_norm(pair, weight, step["axis"], site.n, epsilon=step["epsilon"], **dtype, **more)
    elif name == "all":
        found = nl.all(pair, step["axis"], **dtype)
    else:
        found = getattr(nl, name)(pair, step["axis"], keepdims=step["kept"], **dtype)
    return flat_of(found, found.dtype)


def _model_folded(seen: Seen) -> Result:
    step, name = seen.step, seen.step["function"]
    x, seen.kind = seen.wide(), step["kind"] or "float32"
    x = np.stack([x, (x.astype(np.float32) * np.float32(0.5)).astype(np.float64)], 1)
    axes = (2,) if step["axis"] in (2, -1) else (1, 2)
    count, size = float(np.prod([x.shape[axis] for axis in axes])), np.abs(x)
    sums = size.sum(axes, keepdims=True)
    slack: Any = 0.0
    if name == "where":
        found = np.where(x > 0, step["operand"] if step["number"] else x, -x)
    elif name == "softmax":
        powers = np.exp(x - x.max(axes, keepdims=True))
        found = powers / powers.sum(axes, keepdims=True)
        slack = 64 * UNIT * (count + size.max(axes, keepdims=True)) * found + 2.0**-126
    elif name == "rms_norm":
        found = x / np.sqrt((x * x).sum(axes, keepdims=True) / seen.n + step["epsilon"]) * 0.5
        slack = 64 * UNIT * count * np.abs(found) + 2.0**-126 + (2.0**-6 * np.abs(found) if step["between"] else 0.0)
    elif name == "var":
        found = x.var(axes, keepdims=True)
        slack = 64 * UNIT * count * (size.max(axes, keepdims=True) + 1e-20) ** 2
    elif name == "prod":
        found = x.prod(axes, keepdims=True)
        far = np.abs(np.log2(np.where(x == 0, 1.0, size))).sum(axes, keepdims=True) > 110
        slack = np.where(far, np.inf, 4 * UNIT * count * np.abs(found) + 2.0**-126)
    elif name == "all":
        found = (x != 0).all(axes, keepdims=True) * 1.0
    elif name in ("sum", "mean"):
        found = getattr(x, name)(axes, keepdims=True)
        slack = 4 * UNIT * count * sums + 2.0**-126
    else:
        found = getattr(x, name)(axes, keepdims=True)
    if step["kind"] in ("bfloat16", "float16"):
        slack = slack + 2.0 ** (-8 if step["kind"] == "bfloat16" else -11) * np.abs(found) * np.not_equal(slack, 0.0)
    return found.reshape(seen.p, -1), np.broadcast_to(slack, found.shape).reshape(seen.p, -1).copy()


# ---- what makes tensors ----------------------------------------------------------------------------------------------


def _draw_made(draw: Draw) -> Step:
    return {"form": draw.pick("zeros", "ones", "full", "zeros_like", "empty_like", "load", "store", "broadcast", "partitions",
                              "identity", "constant", "expanded", "turned", "product", "placed", "rsub", "bools"),
            "kind": draw.pick("float32", "bfloat16", "int32"), "memory": draw.pick("sbuf", "psum", "private_hbm"),
            "told": draw.flag(), "value": draw.pick(0, 3, -2), "size": draw.pick(1, 8, 32, 100)}  # fmt: skip


def _issue_made(site: Site) -> Any:
    step, p = site.step, site.p
    form, kind, memory = step["form"], getattr(nl, step["kind"]), getattr(nl, step["memory"])
    if form in ("zeros", "ones"):
        made = getattr(nl, form)((p, 6), kind, buffer=memory)
    elif form == "full":
        made = nl.full((p, 6), step["value"], kind, buffer=memory)
    elif form == "zeros_like":
        made = nl.zeros_like(site.flat(), dtype=kind, buffer=memory) if step["told"] else nl.zeros_like(site.flat())
    elif form == "empty_like":
        made = nl.empty_like(site.flat(), dtype=kind, transpose_axes=(1, 0), buffer=nl.sbuf)
        if not step["told"]:
            made = nl.empty_like(site.flat(), kind, nl.sbuf)
        nisa.memset(dst=made, value=step["value"])
    elif form == "load":
        made = nl.load(site.hbm(site.flat()), dtype=nl.bfloat16) if step["told"] else nl.load(site.hbm(site.flat()))
    elif form == "store":
        made = site.fresh(p, site.n, buffer=nl.private_hbm)
        nl.store(made, site.flat())
    elif form == "broadcast":
        made = (
            nl.broadcast_to(site.flat()[:, 0:1], (p, 5), dtype=nl.bfloat16)
            if step["told"]
            else nl.broadcast_to(site.flat()[:, 0:1], (p, 5))
        )
    elif form == "partitions":
        made = nl.broadcast_to(
            flat_of(site.tiles["noise"][0:1, 0:12], nl.float32 if step["told"] else nl.int32), (step["size"], 12)
        )
    elif form == "identity":
        given = {"dtype": kind} if step["told"] else {}
        made = nl.shared_identity_matrix(step["size"], **given)
        if not step["told"] and step["memory"] == "sbuf":
            dst = site.fresh(step["size"], step["size"], dtype=nl.bfloat16)
            made = nl.shared_identity_matrix(step["size"], nl.bfloat16, dst=dst)
            made = dst if made is None else made
    elif form == "constant":
        made = nl.load(nl.shared_constant(np.arange(24, dtype=np.float32).reshape(4, 6) - step["value"]))
    elif form == "expanded":
        made = nl.expand_dims(site.flat().data, 1 if step["told"] else -1)
    elif form == "bools":
        made = site.fresh(p, 8, dtype=nl.bool_)
        nisa.tensor_copy(dst=made, src=site.ints(p, 8, 2))
        return nl.copy(made, dtype=nl.float32)
    elif form == "turned":
        made = nl.transpose(site.flat(), dtype=nl.float32) if step["told"] else nl.transpose(site.flat())
    elif form == "product":
        made = nl.matmul(site.flat(), flat_of(site.ints(site.n, 8, 9, least=-4)))
    elif form == "placed":
        made = nl.ndarray((p, 6), nl.float32, buffer=nl.sbuf, address=(0, 4096 if step["told"] else 8192))
        nisa.memset(dst=made, value=float(step["value"]))
    else:
        with nl.no_reorder():
            made = nl.subtract(1.0, site.flat())
    if made.buffer not in (nl.sbuf, nl.psum):
        made = nl.load(made)
    return flat_of(made, made.dtype)


def _model_made(seen: Seen) -> Result:
    step, p, form = seen.step, seen.p, seen.step["form"]
    data = seen.wide()
    if form in ("zeros", "ones", "full", "placed"):
        seen.kind = "float32" if form == "placed" else step["kind"]
        return np.full((p, 6), {"zeros": 0, "ones": 1}.get(form, step["value"])), 0
    if form in ("zeros_like", "empty_like"):
        value = 0 if form == "zeros_like" else step["value"]
        seen.kind = "float32" if form == "zeros_like" and not step["told"] else step["kind"]
        return np.full((seen.n, p) if form == "empty_like" and step["told"] else (p, seen.n), value), 0
    if form == "load":
        seen.kind = "bfloat16" if step["told"] else "float32"
        return (typed(data, "bfloat16") if step["told"] else data), 0
    if form in ("store", "expanded"):
        return data, 0
    if form == "bools":
        return seen.ints(p, 8, 2), 0
    if form == "broadcast":
        found = np.repeat(data[:, :1], 5, 1)
        return (typed(found, "bfloat16") if step["told"] else found), 0
    if form == "partitions":
        return np.repeat(seen.state["noise"][:1, :12], step["size"], 0), 0
    if form == "identity":
        return np.eye(step["size"]), 0
    if form == "constant":
        return np.arange(24.0).reshape(4, 6) - step["value"], 0
    if form == "turned":
        return data.T, 0
    if form == "product":
        two = seen.ints(seen.n, 8, 9, least=-4).astype(np.float64)
        size = np.abs(data) @ np.abs(two)
        return data @ two, np.where(size < 1e36, UNIT * (seen.n + 2) * size + 2.0**-126, np.inf)
    return np.float32(1) - data.astype(np.float32), 0


# ---- what a kernel is told, and its own loops ------------------------------------------------------------------------


def _draw_told(draw: Draw) -> Step:
    return {
        "ranges": [[int(draw.rng.integers(0, 4)), int(draw.rng.integers(4, 9)), int(draw.rng.integers(1, 4))] for _ in range(4)]
    }


_RANGES = ("affine_range", "sequential_range", "static_range", "range")


def _issue_told(site: Site) -> Any:
    """Which of how many programs it is, where its tensors lie, and how often loops of constants turn."""
    hbm = site.hbm(site.flat())
    bank = site.fresh(4, 4, buffer=nl.psum)
    facts = [nl.program_id(axis=0), nl.num_programs(axes=0), nl.program_ndim(), nl.tile_size.pmax]
    for tensor in (site.data, bank, hbm):
        facts += [int(test(tensor.buffer)) for test in (nl.is_sbuf, nl.is_psum, nl.is_hbm, nl.is_on_chip)]
    facts += [hbm.ndim, hbm.size, *hbm.shape, *hbm.strides, int(hbm.is_contiguous()), int(hbm.is_indirect())]
    facts += [pair[1] for pair in hbm.get_pattern()]
    facts += [nisa.get_nc_version().value, nisa.get_nc_sub_version()]
    for name, (start, stop, by) in zip(_RANGES, site.step["ranges"], strict=True):
        facts.append(sum(getattr(nl, name)(start, stop, by)))
    facts.append(sum(nl.affine_range(5)))
    found = site.fresh(1, len(facts))
    for place, fact in enumerate(facts):
        nisa.memset(dst=found[:, place : place + 1], value=float(fact))
    return found


def _model_told(seen: Seen) -> Result:
    """Without the program's own number, which the model of both cores does not know: it is left open."""
    p, n = seen.p, seen.n
    facts = [0, seen.step["cores"], 1, 128]
    facts += [1, 0, 0, 1, 0, 1, 0, 1, 0, 0, 1, 0]
    facts += [2, p * n, p, n, n, 1, 1, 0, p, n]
    facts += [{"trn1": 2, "trn2": 3, "trn3": 4}[seen.step["chip"]], 0]
    facts += [sum(range(*each)) for each in seen.step["ranges"]] + [10]
    slack = np.zeros((1, len(facts)))
    slack[0, 0] = seen.step["cores"] - 1
    return np.array([facts], np.float64), slack


# ---- registers and scalars -------------------------------------------------------------------------------------------


def _draw_registers(draw: Draw) -> Step:
    whole = [int(draw.rng.integers(-50, 50)) for _ in range(3)]
    return {
        "form": draw.pick("registers", "scalars", "scalars", "place"),
        "whole": whole,
        "divisor": draw.pick(1, 2, 3, 7),
        "symbol": draw.pick("+", "-", "*", "//", "%", "n", "r-", "wide"),
        "at": int(draw.rng.integers(0, 8)),
    }


def _issue_registers(site: Site) -> Any:
    step, found = site.step, site.fresh(1, 2, dtype=nl.int32)
    a, b, c = step["whole"]
    number = site.ints(1, 1, 1000)
    if step["form"] == "registers":
        first, second = nisa.register_alloc(a), nisa.register_alloc(b)
        nisa.register_move(second, c)
        nisa.register_move(first, second)
        nisa.register_store(found[:, 0:1], first)
        nisa.register_load(second, number)
        nisa.register_move(first, second)
        nisa.register_store(found[:, 1:2], first)
        return found
    scalar = nisa.scalar_load(number)
    if step["form"] == "place":
        hbm = site.hbm(flat_of(site.tiles["noise"][:, 0:8]))
        place = nisa.scalar_load(site.ints(1, 1, len(hbm.shape) and int(hbm.shape[0])))
        row = site.fresh(1, 8)
        nisa.dma_copy(dst=row, src=hbm.select(0, place))
        return row
    if step["symbol"] == "wide":
        wide, wider = site.fresh(1, 1, dtype=nl.int64), site.fresh(1, 2, dtype=nl.int64)
        nisa.memset(dst=wide, value=a)
        value = nisa.scalar_load(wide)
        nisa.scalar_store(wider[:, 0:1], value * b + c)
        nisa.scalar_store(wider[:, 1:2], -value - b)
        return flat_of(wider, nl.float32)
    value = _combined(step["symbol"], scalar, a, step["divisor"])
    nisa.scalar_store(found[:, 0:1], value)
    nisa.scalar_store(found[:, 1:2], value + scalar)
    return found


def _combined(symbol: str, scalar: Any, whole: int, divisor: int) -> Any:
    if symbol == "+":
        return scalar + whole
    if symbol == "-":
        return scalar - whole
    if symbol == "r-":
        return whole - scalar
    if symbol == "*":
        return scalar * whole
    if symbol == "//":
        return scalar // divisor
    if symbol == "%":
        return scalar % divisor
    return -scalar


def _model_registers(seen: Seen) -> Result:
    step, noise = seen.step, seen.state["noise"]
    a, b, c = step["whole"]
    number = int(noise[0, 0]) % 1000
    if step["form"] == "registers":
        return np.array([[c, number]]), 0
    if step["form"] == "place":
        return noise[int(noise[0, 0]) % len(noise), :8][None], 0
    if step["symbol"] == "wide":
        return np.array([[a * b + c, -a - b]]), 0
    value = _combined(step["symbol"], number, a, step["divisor"])
    return np.array([[value, value + number]]), 0


LANGUAGE = {
    "called": Rare(_draw_binary, _issue_binary, _model_binary),
    "called alone": Rare(_draw_unary, _issue_unary, _model_unary),
    "folded": Rare(_draw_folded, _issue_folded, _model_folded),
    "made": Rare(_draw_made, _issue_made, _model_made),
    "told": Rare(_draw_told, _issue_told, _model_told),
    "registers": Rare(_draw_registers, _issue_registers, _model_registers),
}
