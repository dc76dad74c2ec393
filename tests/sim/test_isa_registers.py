"""Scalar registers, run-time scalars, and what two cores do together."""

import numpy as np
import pytest
from hypothesis import strategies as st
from isa_operands import DEFAULT_CASES, MANY_CASES, bits, check, run_cases

from nki_hf.chips import get_chip
from nki_hf.errors import KernelFault
from nki_hf.sim import SimOptions, jit, launch
from nki_hf.sim import isa as nisa
from nki_hf.sim import language as nl

NAMES = (
    "register_alloc",
    "register_move",
    "register_load",
    "register_store",
    "scalar_load",
    "scalar_store",
    "core_barrier",
    "sendrecv",
    "get_nc_version",
    "get_nc_sub_version",
)


def stored(write, dtype=nl.int32, *arrays):
    """The element that `write(tile, *arrays)` puts into a 1 x 1 tile: of a fresh run, and of a replay on `arrays` + 1."""

    def kernel(x0=None):
        tile, out = nl.ndarray((1, 1), dtype), nl.ndarray((1, 1), dtype, buffer=nl.shared_hbm)
        write(tile, *(item for item in (x0,) if item is not None))
        nisa.dma_copy(dst=out, src=tile)
        return out

    result = launch(kernel, arrays, options=SimOptions(record=True))
    again = result.program({f"x{index}": array + 1 for index, array in enumerate(arrays)})
    return result.outputs[0][0, 0].item(), again[0][0, 0].item()


INT32 = st.integers(-(2**31), 2**31 - 2)


@check("register_alloc")
def register_alloc(data):
    value = data.draw(INT32)
    assert stored(lambda tile: nisa.register_store(tile, nisa.register_alloc(value))) == (value, value)


@check("register_move")
def register_move(data):
    """By an int and by a register: the copy does not follow its source afterwards, in replays neither."""
    value, later = data.draw(INT32), data.draw(INT32)

    def write(tile):
        a, b = nisa.register_alloc(), nisa.register_alloc(7)
        nisa.register_move(a, value)
        nisa.register_move(b, a)
        nisa.register_move(a, later)
        nisa.register_store(tile, b)

    assert stored(write) == (value, value)


@check("register_load")
def register_load(data):
    value, space = data.draw(INT32), data.draw(st.sampled_from(["hbm", "sbuf"]))

    def write(tile, x):
        source, register = x, nisa.register_alloc()
        if space == "sbuf":
            source = nl.ndarray((1, 1), nl.int32)
            nisa.dma_copy(dst=source, src=x)
        nisa.register_load(register, source)
        nisa.register_store(tile, register)

    assert stored(write, nl.int32, np.array([[value]], np.int32)) == (value, value + 1)


@check("register_store")
def register_store(data):
    """Stores cast to the tile's type as instructions do: narrow integers saturate."""
    value, kind = data.draw(INT32), data.draw(st.sampled_from(["int8", "uint8", "int16", "int32", "float32"]))
    info = np.iinfo(kind) if kind != "float32" else None
    want = float(np.float32(value)) if info is None else int(np.clip(value, info.min, info.max))
    assert stored(lambda tile: nisa.register_store(tile, nisa.register_alloc(value)), kind) == (want, want)


def _wrap(value, width):
    half = 1 << (width - 1)
    return (value + half) % (2 * half) - half


@check("scalar_load")
def scalar_load(data):
    """Arithmetic on loaded scalars wraps at their width."""
    width = data.draw(st.sampled_from([32, 64]))
    value = data.draw(st.integers(-(2 ** (width - 1)), 2 ** (width - 1) - 2))
    factor, term = data.draw(st.integers(-1000, 1000)), data.draw(st.integers(-1000, 1000))
    dtype = nl.int32 if width == 32 else nl.int64

    def write(tile, x):
        nisa.scalar_store(tile, nisa.scalar_load(x) * factor + term)

    got = stored(write, dtype, np.array([[value]], f"int{width}"))
    assert got == (_wrap(value * factor + term, width), _wrap((value + 1) * factor + term, width))


@check("scalar_store")
def scalar_store(data):
    value = data.draw(INT32)

    def write(tile, x):
        nisa.scalar_store(tile, nisa.scalar_load(x))

    assert stored(write, nl.int32, np.array([[value]], np.int32)) == (value, value + 1)


@check("sendrecv")
def sendrecv(data):
    """Each core receives the other's tile; a destination may be the tile that is sent."""
    kind = data.draw(st.sampled_from(["float32", "bfloat16", "int32"]))
    rows, columns = data.draw(st.integers(1, 32)), data.draw(st.integers(1, 16))
    in_place = data.draw(st.booleans())

    @jit
    def kernel(x):
        me = nl.program_id(0)
        mine = nl.ndarray((rows, columns), x.dtype)
        nisa.dma_copy(dst=mine, src=x[me])
        theirs = mine if in_place else nl.ndarray((rows, columns), x.dtype)
        nisa.sendrecv(src=mine, dst=theirs, send_to_rank=1 - me, recv_from_rank=1 - me, pipe_id=0)
        out = nl.ndarray((2, rows, columns), x.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=out[me], src=theirs)
        return out

    source = np.random.default_rng(data.draw(st.integers(0, 99))).integers(0, 99, (2, rows, columns))
    source = source.astype(getattr(nl, kind).dtype)
    result = launch(kernel[2], (source,), options=SimOptions(record=True))
    np.testing.assert_array_equal(bits(result.outputs[0]), bits(source[::-1]))
    np.testing.assert_array_equal(bits(result.program({"x": source[::-1].copy()})[0]), bits(source))


@check("core_barrier")
def core_barrier(data):
    """After the barrier both cores read what both have written before it."""
    rows, columns = data.draw(st.integers(1, 16)), data.draw(st.integers(1, 16))

    @jit
    def kernel(x):
        me = nl.program_id(0)
        tile = nl.ndarray((rows, columns), nl.float32)
        nisa.dma_copy(dst=tile, src=x[me])
        shared = nl.ndarray((2, rows, columns), nl.float32, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=shared[me], src=tile)
        nisa.core_barrier(data=shared, cores=(0, 1))
        nisa.dma_copy(dst=tile, src=shared[1 - me])
        out = nl.ndarray((2, rows, columns), nl.float32, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=out[me], src=tile)
        return out

    source = np.random.default_rng(0).standard_normal((2, rows, columns)).astype(np.float32)
    np.testing.assert_array_equal(launch(kernel[2], (source,)).outputs[0], source[::-1])


@check("get_nc_version")
def get_nc_version(data):
    chip, generation = data.draw(st.sampled_from([("trn1", 2), ("trn2", 3), ("trn3", 4)]))
    seen = []
    launch(lambda: seen.append(nisa.get_nc_version()), (), options=SimOptions(chip=get_chip(chip)))
    assert seen[0] is nisa.nc_version(generation)
    assert [seen[0] >= version for version in nisa.nc_version] == [generation >= number for number in (2, 3, 4)]


@check("get_nc_sub_version")
def get_nc_sub_version(data):
    chip = data.draw(st.sampled_from(["trn1", "trn2", "trn3"]))
    seen = []
    launch(lambda: seen.append(nisa.get_nc_sub_version()), (), options=SimOptions(chip=get_chip(chip)))
    assert seen == [0]


def test_scalar_store_refuses_ints_and_other_widths():
    def store_int():
        nisa.scalar_store(nl.ndarray((1, 1), nl.int32), 5)

    def store_wide(x):
        nisa.scalar_store(nl.ndarray((1, 1), nl.int32), nisa.scalar_load(x))

    with pytest.raises(KernelFault, match=r"must be an NkiScalar.*nisa\.memset"):
        launch(store_int, ())
    with pytest.raises(KernelFault, match="dst is int32 and value int64"):
        launch(store_wide, (np.zeros((1, 1), np.int64),))


def test_scalar_load_wants_a_signed_integer_of_one_element():
    with pytest.raises(KernelFault, match="src is uint32, int32 or int64"):
        launch(lambda x: nisa.scalar_load(x), (np.zeros((1, 1), np.uint32),))
    with pytest.raises(KernelFault, match="must have exactly one element"):
        launch(lambda x: nisa.scalar_load(x), (np.zeros((1, 2), np.int32),))


def test_a_row_that_a_register_names_is_copied_in_replays_too():
    def kernel(x, i):
        register, tile = nisa.register_alloc(), nl.ndarray((1, 4), nl.float32)
        nisa.register_load(register, i)
        nisa.dma_copy(dst=tile, src=x.ap(pattern=[[4, 1], [1, 4]], scalar_offset=register, indirect_dim=0))
        out = nl.ndarray((1, 4), nl.float32, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=out, src=tile)
        return out

    x = np.arange(32, dtype=np.float32).reshape(8, 4)
    result = launch(kernel, (x, np.array([[2]], np.int32)), options=SimOptions(record=True))
    assert result.outputs[0].tolist() == [x[2].tolist()]
    assert result.program({"x": x, "i": np.array([[5]], np.int32)})[0].tolist() == [x[5].tolist()]


@pytest.mark.parametrize("name", NAMES)
def test_equals_numpy_on_random_operands(name):
    run_cases(name, DEFAULT_CASES)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_equals_numpy_on_many_random_operands(name):
    run_cases(name, MANY_CASES)
