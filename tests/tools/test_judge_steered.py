"""What inputs steer (turns of loops, offsets, conditions) is judged with other values of the elements that steer it."""

import numpy as np
import pytest

import nki_hf
from nki_hf.sim import SimOptions, launch
from nki_hf.sim import isa as nisa
from nki_hf.sim import language as nl
from nki_hf.tasks import load_task
from nki_hf.tools.judging.steered_inputs import task_elements
from nki_hf.tools.judging.steering import Steering, steering
from nki_hf.tools.judging.values import Run

TASK = """
import numpy as np

from nki_hf.tasks import FLOAT, Task


def inputs(size, distribution, rng):
    x = rng.standard_normal((size, 64)) * (10 if distribution == "wide" else 1)
    return {"x": x, "bias": rng.standard_normal((8, 64)), "count": rng.integers(1, 7, (1, 1))}


TASK = Task(
    name="counted",
    about="relu(x) * count + bias[count], x [size, 64]",
    arrays=lambda size: {"x": ((size, 64), FLOAT), "bias": ((8, 64), FLOAT), "count": ((1, 1), "int32")},
    inputs=inputs,
    reference=lambda x, bias, count: np.maximum(x, 0) * count + bias[count.flat[0]],
    flops=lambda size: 3 * size * 64,
    check=(128, 256),
    at=(256,),
    dtype="float32",
)
"""
KERNEL = """
import nki
import nki.isa as nisa
import nki.language as nl


def sbuf(shape, dtype=nl.float32):
    return nl.ndarray(shape, dtype, buffer=nl.sbuf)


def load(src, dtype=nl.float32):
    tile = sbuf(src.shape, dtype)
    nisa.dma_copy(dst=tile, src=src)
    return tile


def register(tile):
    whole, found = sbuf((1, 1), nl.int32), nisa.register_alloc()
    nisa.tensor_copy(dst=whole, src=tile)
    nisa.register_load(dst=found, src=whole)
    return found


def below(value, bound):
    flag = sbuf((1, 1))
    nisa.tensor_scalar(dst=flag, data=value, op0=nl.less, operand0=bound)
    return flag


@nki.jit
def counted(x, bias, count):
    rows, width = x.shape
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    turns, shift = register(load(count, nl.int32)), sbuf((128, width))
    row_of = bias.ap(pattern=[[0, 128], [1, width]], offset=0, scalar_offset=turns, indirect_dim=0)
    nisa.dma_copy(dst=shift, src=row_of)
    for row in range(0, rows, 128):
        tile, total = load(x[row : row + 128, :]), sbuf((128, width))
        nisa.tensor_copy(dst=total, src=shift)
        positive = sbuf((128, width))
        nisa.tensor_scalar(dst=positive, data=tile, op0=nl.maximum, operand0=0.0)

        def add(i):
            nisa.tensor_tensor(dst=total, data1=total, data2=positive, op=nl.add)

        {body}
        nisa.dma_copy(dst=out[row : row + 128, :], src=total)
    return out
"""
RIGHT = "nl.fori_loop(0, turns, add)"
GUARD = """{value}
        nl.fori_loop(0, register(below(value, {bound})), lambda i: nl.fori_loop(0, turns, add))"""
WHILE = """{value}
        more, left = below(value, {bound}), nisa.register_alloc()

        def once(r):
            nl.fori_loop(0, turns, add)
            none = nisa.register_alloc()
            nisa.register_move(dst=none, src=0)
            return none

        nl.while_loop(register(more), once)"""
ONE = "value = tile[0:1, 0:1]"
BELOW = "value = below(tile[0:1, 0:1], -25.0)"
MIDDLE = """value = sbuf((1, 1))
        nisa.tensor_tensor(dst=value, data1=positive[0:1, 3:4], data2=shift[0:1, 5:6], op=nl.add)"""
OTHER = "value = shift[0:1, 7:8]"
INTEGER = "value = load(count, nl.int32)"
REDUCED = """rows_of, swapped = sbuf((128, 1)), sbuf((1, 128))
        nisa.tensor_reduce(dst=rows_of, op=nl.{op}, data=tile, axis=1)
        bank = nl.ndarray((1, 128), nl.float32, buffer=nl.psum)
        nisa.nc_transpose(dst=bank, data=rows_of)
        nisa.tensor_copy(dst=swapped, src=bank)
        value = sbuf((1, 1))
        nisa.tensor_reduce(dst=value, op=nl.{op}, data=swapped, axis=1)"""
STORED = """flag, place = register(below(tile[0:1, 0:1], 25.0)), sbuf((1, 1), nl.int32)
        nisa.register_store(dst=place, src=flag)
        again = nisa.register_alloc()
        nisa.register_load(dst=again, src=place)
        nl.fori_loop(0, again, lambda i: nl.fori_loop(0, turns, add))"""
DOWN = """left, flag, again = sbuf((1, 1), nl.int32), sbuf((1, 1), nl.int32), nisa.register_alloc()
        nisa.register_store(dst=left, src=turns)

        def once(r):
            add(r)
            nisa.tensor_scalar(dst=left, data=left, op0=nl.subtract, operand0=1.0)
            after = nisa.register_alloc()
            nisa.register_load(dst=after, src=left)
            return after

        nisa.register_load(dst=again, src=left)
        nl.while_loop(again, once)"""
OFFSET = """start = register(below(tile[0:1, 0:1], -25.0))
        rows_from = x.ap(pattern=[[width, 127], [1, width]], offset=row * width, scalar_offset=start, indirect_dim=0)
        nisa.dma_copy(dst=tile[0:127, :], src=rows_from)
        nisa.tensor_scalar(dst=positive, data=tile, op0=nl.maximum, operand0=0.0)
        nl.fori_loop(0, turns, add)"""
CONDITION = """nl.fori_loop(0, turns, add)
        flag = below(tile[0:1, 0:1], 25.0)
        nisa.tensor_scalar(dst=total[0:1, :], data=total[0:1, :], op0=nl.multiply, operand0=flag)"""
CHEATS = {
    "one element": (GUARD, {"value": ONE, "bound": 25.0}, "x[0, 0] = ", "turned 0 times"),
    "one element, far below": (GUARD, {"value": BELOW, "bound": 0.5}, "x[0, 0] = -", "turned 0 times"),
    "a value of the middle": (GUARD, {"value": MIDDLE, "bound": 25.0}, "x[0, 3] = ", "turned 0 times"),
    "another argument": (GUARD, {"value": OTHER, "bound": 2.0}, "bias (bias[0, 0] and 511 more", "turned 0 times"),
    "an integer": (GUARD, {"value": INTEGER, "bound": 6.0}, "count[0, 0] = 6", "turned 0 times"),
    "the largest": (GUARD, {"value": REDUCED.format(op="maximum"), "bound": 30.0}, "x", "turned 0 times"),
    "the sum": (GUARD, {"value": REDUCED.format(op="add"), "bound": 8000.0}, "x (x[0, 0] and", "turned 0 times"),
    "a while loop": (WHILE, {"value": ONE, "bound": 25.0}, "x[0, 0] = ", "turned 0 times"),
    "through memory": (STORED, {}, "x[0, 0] = ", "turned 0 times"),
}


@pytest.fixture
def judged(tmp_path):
    (tmp_path / "task.py").write_text(TASK)

    def run(body, **words):
        file = tmp_path / "kernel.py"
        file.write_text(KERNEL.replace("{body}", body))
        return nki_hf.judge(file, str(tmp_path / "task.py"), **words)

    return run


@pytest.mark.parametrize("how", CHEATS)
@pytest.mark.parametrize("seed", [1, 2])
def test_a_loop_that_computes_only_for_some_values_fails_whatever_is_drawn(how, seed, judged):
    body, changes, element, turned = CHEATS[how]
    record = judged(body.format(**changes) if changes else body, seed=seed)
    said = record["sentence"]
    assert (record["passed"], record["stage"]) == (False, "values"), said
    assert "the result depends on how often the loop at line" in said
    assert element in said or "comes from" in said, said
    assert turned in said, said


@pytest.mark.parametrize("seed", range(6))
def test_a_loop_that_some_draws_turn_is_named_whichever_draw_finds_it(seed, judged):
    body, changes, _, _ = CHEATS["another argument"]
    record = judged(body.format(**{**changes, "bound": 1.0}), seed=seed)
    assert "the result depends on how often the loop at line" in record["sentence"], record["sentence"]


@pytest.mark.parametrize("seed", [1, 2])
def test_an_offset_that_a_register_takes_from_the_inputs_is_judged_elsewhere(seed, judged):
    said = judged(OFFSET, seed=seed)["sentence"]
    assert "the result depends on a number that line 20 loads from the inputs: with x[0, 0] = -" in said, said


@pytest.mark.parametrize("seed", [1, 2])
def test_a_comparison_of_one_number_of_the_inputs_is_judged_both_ways(seed, judged):
    said = judged(CONDITION, seed=seed)["sentence"]
    assert "the result depends on a comparison at line 26 of a number of the inputs: with x[0, 0] = " in said, said


def test_lines_of_a_module_beside_the_kernel_are_named_with_its_file(judged, tmp_path):
    """The line that loads what steers stands there, the one that then breaks a limit in the kernel."""
    parts, kernel = KERNEL.split("@nki.jit")
    whole = OFFSET.replace("[width, 127]", "[width, 128]").replace("tile[0:127, :]", "tile")
    head = "import nki\nimport nki.isa as nisa\nimport nki.language as nl\nfrom parts import below, load, register, sbuf\n"
    kernel = f"{head}\n\n@nki.jit{kernel}".replace("{body}", whole)
    (tmp_path / "parts.py").write_text(parts)
    file = tmp_path / "kernel.py"
    file.write_text(kernel)
    loads, breaks = (
        next(number for number, line in enumerate(source.splitlines(), 1) if text in line)
        for source, text in ((parts, "nisa.register_load"), (kernel, "src=rows_from"))
    )
    record = nki_hf.judge(file, str(tmp_path / "task.py"), seed=1)
    assert f"the result depends on a number that parts.py:{loads} loads from the inputs: with x[0, 0] = -" in record["sentence"]
    assert (record["findings"][0]["file"], record["findings"][0]["line"]) == (str(file), breaks)


@pytest.mark.parametrize("body", [RIGHT, DOWN], ids=["fori_loop", "while_loop"])
def test_a_loop_whose_turns_the_inputs_rightly_say_passes(body, judged):
    """So does the row of a table that they choose."""
    record = judged(body, seed=3)
    assert record["passed"], record["sentence"]
    assert any(case["distribution"] == "steered" and case["verdict"] == "pass" for case in record["cases"])
    assert not any("no other count was seen" in words for words in record["warnings"])


def test_a_loop_that_turned_alike_on_all_inputs_is_said(judged):
    record = judged(GUARD.format(value=ONE, bound=1e6), seed=3)
    assert record["passed"], record["sentence"]
    (said,) = [words for words in record["warnings"] if "no other count was seen" in words and "size 128" in words]
    assert "x[0, 0]" in said
    assert "turned once" in said


def _tile(shape, dtype=nl.float32, buffer=nl.sbuf):
    return nl.ndarray(shape, dtype, buffer=buffer)


def _counted_by_a_product(a, b, other):
    """A loop that turns as often as element [2, 3] of a.T @ b says; `other` steers nothing."""
    out = _tile(other.shape, buffer=nl.shared_hbm)
    left, right, more = (_tile(item.shape) for item in (a, b, other))
    for tile, item in ((left, a), (right, b), (more, other)):
        nisa.dma_copy(dst=tile, src=item)
    bank, turned = _tile((32, 16), buffer=nl.psum), _tile((16, 32), buffer=nl.psum)
    nisa.nc_matmul(dst=bank, stationary=left, moving=right)
    product, swapped, count = _tile((32, 16)), _tile((16, 32)), _tile((1, 1), nl.int32)
    nisa.tensor_copy(dst=product, src=bank)
    nisa.nc_transpose(dst=turned, data=product)
    nisa.tensor_copy(dst=swapped, src=turned)
    place = _tile((16, 32), nl.float32, nl.shared_hbm)
    nisa.dma_copy(dst=place, src=swapped)
    nisa.dma_copy(dst=count, src=place[3:4, 2:3])
    turns = nisa.register_alloc()
    nisa.register_load(dst=turns, src=count)
    nl.fori_loop(0, turns, lambda i: nisa.tensor_tensor(dst=more, data1=more, data2=more, op=nl.maximum))
    nisa.dma_copy(dst=out, src=more)
    return out


def test_what_steers_a_loop_is_followed_through_products_transposes_and_memory():
    """Element [2, 3] of a.T @ b follows from column 2 of a and column 3 of b, whatever lies between."""
    rng = np.random.default_rng(1)
    a, b, other = (np.abs(rng.standard_normal(shape)).astype(np.float32) for shape in ((8, 32), (8, 16), (32, 16)))
    found = launch(_counted_by_a_product, (a, b, other), options=SimOptions(record=True))
    (item,) = steering(found)
    assert (item.what, len(item.loops)) == ("loop", 1)
    assert item.loops[0].turned == int(np.rint((a.T @ b)[2, 3]))
    assert set(item.elements) == {"a", "b"}
    assert np.argwhere(item.elements["a"]).tolist() == [[row, 2] for row in range(8)]
    assert np.argwhere(item.elements["b"]).tolist() == [[row, 3] for row in range(8)]


def test_elements_are_named_in_the_layout_of_the_task():
    flags = np.zeros((128, 256), np.bool_)
    flags[3, 5] = True  # head_dim 3 of row 5
    run = Run(task=load_task("attention"), size=256, dtype="bfloat16", layout={"q": "ds"})
    item = Steering(what="loop", file="", line=1, loops=(), elements={"queries": flags})
    found = task_elements(run, {"parameters": [("queries", "q")]}, item)
    assert np.argwhere(found["q"]).tolist() == [[5, 3]]


ALONE = """nl.fori_loop(0, turns, add)
        one, ones = sbuf((1, 1)), sbuf((1, width))
        {make}
        nisa.tensor_scalar(dst=total[0:1, :], data=total[0:1, :], op0=nl.multiply, operand0=one)"""
FACTOR = "nisa.tensor_scalar(dst=one, data=one, op0=nl.multiply, operand0=0.5, op1=nl.add, operand1=1.0)"
FROM_X = "nisa.tensor_scalar(dst=one, data=tile[0:1, 5:6], op0=nl.{0}, operand0={1}, op1=nl.{2}, operand1={3})"
IN_DISGUISE = {
    "a maximum": FROM_X.format("subtract", 28.0, "maximum", 0.0),
    "a sigmoid": FROM_X.format("subtract", 28.0, "multiply", 50.0)
    + "\n        nisa.activation(dst=one, op=nl.sigmoid, data=one)",
    "an integer": FROM_X.format("multiply", 0.035, "maximum", 0.0)
    + "\n        whole = sbuf((1, 1), nl.int32)\n        nisa.tensor_copy(dst=whole, src=one)"
    "\n        nisa.tensor_copy(dst=one, src=whole)",
    "an equality": FROM_X.format("equal", 3.0, "multiply", 1.0),
    "a band": FROM_X.format("greater", 10.5, "multiply", 1.0)
    + "\n        low = sbuf((1, 1))\n        nisa.tensor_scalar(dst=low, data=tile[0:1, 5:6], op0=nl.less, operand0=11.5)"
    "\n        nisa.tensor_tensor(dst=one, data1=one, data2=low, op=nl.multiply)",
    "two elements": "nisa.tensor_scalar(dst=one, data=tile[0:1, 6:7], op0=nl.add, operand0=25.0)"
    "\n        nisa.tensor_tensor(dst=one, data1=tile[0:1, 5:6], data2=one, op=nl.greater)",
    "of eight, each by itself": "eight = sbuf((1, 8))"
    "\n        nisa.tensor_scalar(dst=eight, data=tile[0:1, 0:8], op0=nl.greater, operand0=25.0)"
    "\n        nisa.tensor_copy(dst=one, src=eight[:, 5:6])",
}


@pytest.mark.parametrize("how", IN_DISGUISE)
@pytest.mark.parametrize("seed", [1, 2])
def test_a_number_that_a_kernel_reads_by_itself_is_judged_with_other_values(how, seed, judged):
    """Whatever is made of it: the kernel is right on what the usual distributions draw for x[0, 5]."""
    record = judged(ALONE.format(make=f"{IN_DISGUISE[how]}\n        {FACTOR}"), seed=seed)
    assert (record["passed"], record["stage"]) == (False, "values"), record["sentence"]
    assert "the result depends on " in record["sentence"], record["sentence"]
    said = "with x (x[0, 0] and 7 more" if "eight" in how else "with x[0, 5] = "
    assert said in record["sentence"], record["sentence"]


def test_a_number_that_is_read_by_itself_and_rightly_used_passes(judged):
    """A factor of 1 + 0 * x[0, 5]."""
    make = "nisa.tensor_scalar(dst=one, data=tile[0:1, 5:6], op0=nl.multiply, operand0=0.0)"
    record = judged(ALONE.format(make=f"{make}\n        {FACTOR}"), seed=3)
    assert record["passed"], record["sentence"]
    assert any(case["distribution"] == "steered" for case in record["cases"])


PREFIX_TASK = """
import numpy as np

from nki_hf.tasks import FLOAT, Task


def inputs(size, distribution, rng):
    return {"x": rng.standard_normal((128, size)), "keys": 128 * rng.integers(1, size // 128 + 1, (1, 1))}


TASK = Task(
    name="prefix_sum",
    about="sum of the first keys columns, a multiple of 128",
    arrays=lambda size: {"x": ((128, size), FLOAT), "keys": ((1, 1), "int32")},
    inputs=inputs,
    reference=lambda x, keys: x[:, : keys.flat[0]].sum(1, keepdims=True),
    flops=lambda size: 128 * size,
    check=(512, 1024),
    at=(1024,),
    dtype="float32",
)
"""
PREFIX = """
import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def prefix(x, keys):
    out = nl.ndarray((128, 1), x.dtype, buffer=nl.shared_hbm)
    total = nl.ndarray((128, 1), nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=total, value=0.0)
    turns = nisa.register_alloc()
    nisa.register_load(dst=turns, src=keys)
    for start in nl.dynamic_range(0, turns, 128):
        tile, part = nl.ndarray((128, 128), nl.float32, buffer=nl.sbuf), nl.ndarray((128, 1), nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x[:, nl.ds(start, 128)])
        nisa.tensor_reduce(dst=part, op=nl.add, data=tile, axis=1)
        nisa.tensor_tensor(dst=total, data1=total, data2=part, op=nl.add)
    nisa.dma_copy(dst=out, src=total)
    return out
"""


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_whole_numbers_that_steer_stay_among_those_that_a_task_draws(seed, tmp_path):
    """192 keys are no case of a task whose counts are multiples of 128."""
    (tmp_path / "task.py").write_text(PREFIX_TASK)
    (tmp_path / "kernel.py").write_text(PREFIX)
    record = nki_hf.judge(tmp_path / "kernel.py", str(tmp_path / "task.py"), seed=seed)
    assert record["passed"], record["sentence"]


DIVIDED = """
import numpy as np

from nki_hf.tasks import FLOAT, Task

TASK = Task(
    name="divided",
    about="x / t, t one number",
    arrays=lambda size: {"x": ((size, 64), FLOAT), "t": ((1, 1), FLOAT)},
    reference=lambda x, t: x / t,
    flops=lambda size: 64 * size,
    check=(128, 256),
    at=(256,),
    dtype="float32",
)
"""
DIVISION = """
import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def divided(x, t):
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    one = nl.ndarray((128, 1), nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=one, src=t.ap(pattern=[[0, 128], [1, 1]]))
    nisa.reciprocal(dst=one, data=one)
    for row in range(0, x.shape[0], 128):
        tile = nl.ndarray((128, 64), nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x[row : row + 128, :])
        nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=one)
        nisa.dma_copy(dst=out[row : row + 128, :], src=tile)
    return out
"""


def test_a_value_for_which_the_task_itself_is_not_finite_is_no_case(tmp_path):
    """t = 0 lies among the values that are tried."""
    (tmp_path / "task.py").write_text(DIVIDED)
    (tmp_path / "kernel.py").write_text(DIVISION)
    record = nki_hf.judge(tmp_path / "kernel.py", str(tmp_path / "task.py"))
    assert record["passed"], record["sentence"]
    assert any(case["distribution"] == "steered" for case in record["cases"])
