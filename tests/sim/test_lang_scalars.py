"""NkiScalar: what each width supports and what is refused (public page nki.isa.NkiScalar), against Python's integers."""

import operator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nki_hf.errors import KernelFault
from nki_hf.sim import SimOptions, launch
from nki_hf.sim import isa as nisa
from nki_hf.sim import language as nl

FIVE = {"int32": np.array([[5]], np.int32), "int64": np.array([[5]], np.int64)}


def wrapped(value, bits):
    return (value + 2 ** (bits - 1)) % 2**bits - 2 ** (bits - 1)


def computed(expression, *values, dtype="int32"):
    """`expression(*scalars)` of loaded values, and of a replay on the values + 1."""

    def kernel(x):
        tiles = [nl.ndarray((1, 1), x.dtype) for _ in values]
        for i, tile in enumerate(tiles):
            nisa.dma_copy(dst=tile, src=x[i : i + 1])
        result, out = nl.ndarray((1, 1), x.dtype), nl.ndarray((1, 1), x.dtype, buffer=nl.shared_hbm)
        nisa.scalar_store(result, expression(*(nisa.scalar_load(tile) for tile in tiles)))
        nisa.dma_copy(dst=out, src=result)
        return out

    array = np.array(values, dtype).reshape(-1, 1)
    run = launch(kernel, (array,), options=SimOptions(record=True))
    return run.outputs[0].item(), run.program({"x": array + 1})[0].item()


@pytest.mark.parametrize("bits", [32, 64])
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_arithmetic_wraps_at_the_width_as_pythons_integers_would(bits, data):
    numbers = st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 2)
    a, b, literal = data.draw(numbers), data.draw(numbers), data.draw(numbers)
    for expression in (lambda s, t: -s + t * literal, lambda s, t: +s - t, lambda s, t: literal - s * t):
        wanted = tuple(wrapped(expression(a + step, b + step), bits) for step in (0, 1))
        assert computed(expression, a, b, dtype=f"int{bits}") == wanted


@settings(max_examples=20, deadline=None)
@given(st.integers(-(2**31), 2**31 - 2), st.integers(2, 1000))
def test_int32_divides_and_takes_remainders_as_python_does(a, divisor):
    assert computed(lambda s: (s // divisor) * 3 + s % divisor, a) == tuple(
        wrapped((n // divisor) * 3 + n % divisor, 32) for n in (a, a + 1)
    )
    with pytest.raises(KernelFault, match="int64 //"):
        computed(lambda s: s // divisor, a, dtype="int64")


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("compare", [operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge])
def test_comparisons_are_refused(compare, dtype):
    for other in (5, None, "scalar"):
        with pytest.raises(KernelFault, match=r"compared.*tensor_scalar"):
            computed(lambda s, other=other: compare(s, s if other == "scalar" else other), 5, dtype=dtype)


@pytest.mark.parametrize(
    "use",
    [
        lambda s: 1 if s else 2,
        int,
        float,
        lambda s: list(range(s)),
        lambda s: [1, 2, 3, 4, 5, 6][s],
        lambda s: "abcdef"[0:s],
        lambda s: nl.ndarray((s, 1), nl.float32),
        lambda s: nl.zeros((8, 8), nl.float32)[0:8, 0:s],
    ],
    ids=["if", "int", "float", "range", "list index", "slice", "shape", "tile slice"],
)
def test_the_kernels_python_cannot_read_a_scalar(use):
    with pytest.raises(KernelFault):
        launch(lambda x: use(nisa.scalar_load(x)), (FIVE["int32"],))


@pytest.mark.parametrize(
    "use",
    [lambda s: s / 2, lambda s: s**2, lambda s: s << 1, lambda s: s & 1, abs, operator.invert, lambda s: 2 / s, divmod],
)
def test_other_operators_are_refused_by_name(use):
    with pytest.raises(KernelFault, match=r"NkiScalar: an operator other than"):
        launch(lambda x: use(nisa.scalar_load(x), 2) if use is divmod else use(nisa.scalar_load(x)), (FIVE["int32"],))


@pytest.mark.parametrize(("dtype", "literal"), [("int32", 2**31), ("int32", -(2**31) - 1), ("int64", 2**63), ("int32", 1.5)])
def test_an_operand_that_does_not_fit_the_width_is_refused(dtype, literal):
    with pytest.raises(KernelFault, match="NkiScalar: operand"):
        launch(lambda x: nisa.scalar_load(x) + literal, (FIVE[dtype],))
    assert computed(lambda s: s + (2**40), 5, dtype="int64")[0] == 5 + 2**40


def test_widths_do_not_mix():
    with pytest.raises(KernelFault, match=r"int32 \+ int64, both of one width"):
        launch(lambda x, y: nisa.scalar_load(x) + nisa.scalar_load(y), (FIVE["int32"], FIVE["int64"]))


def test_an_offset_of_64_bits_addresses_hbm_and_is_refused_on_chip():
    rows = np.arange(40, dtype=np.float32).reshape(10, 4)

    def from_hbm(x, i):
        tile, out = nl.ndarray((1, 4), nl.float32), nl.ndarray((1, 4), nl.float32, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=tile, src=x.ap([[4, 1], [1, 4]], scalar_offset=nisa.scalar_load(i) * 2 - 1, indirect_dim=0))
        nisa.dma_copy(dst=out, src=tile)
        return out

    assert launch(from_hbm, (rows, np.array([[4]], np.int64))).outputs[0].tolist() == [rows[7].tolist()]

    def on_chip(x, i, way):
        tile = nl.load(x)
        scalar = nisa.scalar_load(i)
        view = tile.ap([[4, 10], [1, 1]], scalar_offset=scalar, indirect_dim=1) if way == "ap" else tile.select(1, scalar)
        column, out = nl.ndarray((10, 1), nl.float32), nl.ndarray((10, 1), nl.float32, buffer=nl.shared_hbm)
        nisa.tensor_copy(dst=column, src=view)
        nisa.dma_copy(dst=out, src=column)
        return out

    for way in ("ap", "select"):
        with pytest.raises(KernelFault, match="on SBUF and PSUM it must be 32-bit"):
            launch(on_chip, (rows, np.array([[1]], np.int64), way))
        assert launch(on_chip, (rows, np.array([[1]], np.int32), way)).outputs[0][:, 0].tolist() == rows[:, 1].tolist()


def test_scalars_are_no_operands_of_instructions_and_are_not_moved_into_registers():
    def operand(x):
        tile = nl.zeros((4, 4), nl.float32)
        nisa.tensor_scalar(dst=tile, data=tile, op0=nl.add, operand0=nisa.scalar_load(x))

    def moved(x):
        nisa.register_move(nisa.register_alloc(), nisa.scalar_load(x))

    def stored(x):
        nisa.register_store(nl.ndarray((1, 1), nl.int32), nisa.scalar_load(x))

    for kernel in (operand, moved, stored):
        with pytest.raises(KernelFault):
            launch(kernel, (FIVE["int32"],))


def test_a_scalar_is_constructed_and_shown_as_documented():
    def kernel(x):
        assert repr(nisa.scalar_load(x)) == "NkiScalar(5, int64)"
        assert repr(nisa.NkiScalar(3)) == "NkiScalar(3, int32)"
        assert repr(nisa.NkiScalar(state=3, dtype=nl.int64, is_comparison=False)) == "NkiScalar(3, int64)"

    launch(kernel, (FIVE["int64"],))
    with pytest.raises(KernelFault, match="dtype=float32"):
        launch(lambda: nisa.NkiScalar(3, nl.float32), ())
    with pytest.raises(KernelFault, match="compared"):
        launch(lambda: nisa.NkiScalar(1, nl.int32, True), ())
