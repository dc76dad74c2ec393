"""Types that pack four numbers into one element keep their name through NumPy, into a kernel and back."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from nki_hf.chips import get_chip
from nki_hf.sim import SimOptions, launch
from nki_hf.sim import isa as nisa
from nki_hf.sim import language as nl
from nki_hf.sim.dtypes import ALL_DTYPES, as_dtype

PACKED = [item for item in ALL_DTYPES.values() if item.family == "packed"]
PLAIN = [item for item in ALL_DTYPES.values() if item.family != "packed" and item.name != "tfloat32"]
MAKERS = {
    "zeros": lambda t: np.zeros((32, 16), dtype=t),
    "empty": lambda t: np.empty((32, 16), t),
    "ones": lambda t: np.ones((32, 16), t),
    "full": lambda t: np.full((32, 16), 7, dtype=t),
    "asarray": lambda t: np.asarray([[1] * 16] * 32, dtype=t),
    "array": lambda t: np.array([[1] * 16] * 32, dtype=t),
    "astype": lambda t: np.ones((32, 16), np.uint8).astype(t),
    "view": lambda t: np.zeros((32, 16 * t.itemsize), np.uint8).view(t),
    "frombuffer": lambda t: np.frombuffer(bytes(32 * 16 * t.itemsize), t).reshape(32, 16),
    "slice": lambda t: np.zeros((64, 32), t)[::2, 16:],
    "transposed": lambda t: np.zeros((16, 32), t).T,
    "reshaped": lambda t: np.zeros(512, t).reshape(32, 16),
    "copied": lambda t: np.zeros((32, 16), t).copy(),
    "contiguous": lambda t: np.ascontiguousarray(np.zeros((16, 32), t).T),
    "zeros_like": lambda t: np.zeros_like(np.zeros((32, 16), t)),
    "of a shape": lambda t: np.zeros_like(np.zeros((32, 16)), dtype=t),
    "broadcast": lambda t: np.broadcast_to(np.zeros((1, 16), t), (32, 16)),
    "taken": lambda t: np.take(np.zeros((40, 16), t), range(32), axis=0),
    "pickled": lambda t: pickle.loads(pickle.dumps(np.zeros((32, 16), t))),
}


@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize("dtype", PACKED, ids=str)
def test_an_array_of_a_packed_type_keeps_it(dtype, maker):
    array = MAKERS[maker](dtype)
    assert as_dtype(array.dtype) == dtype
    seen = []

    def kernel(x):
        seen.append(x.dtype.name)
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        tile = nl.ndarray(x.shape, x.dtype)
        nisa.dma_copy(dst=tile, src=x)
        nisa.dma_copy(dst=out, src=tile)
        return out

    output = launch(kernel, (array,)).outputs[0]
    assert seen == [dtype.name]
    assert as_dtype(output.dtype) == dtype
    np.testing.assert_array_equal(output, array)


@pytest.mark.parametrize("dtype", PLAIN, ids=str)
def test_every_other_type_keeps_its_name_too(dtype):
    assert as_dtype(np.zeros(3, dtype=dtype).dtype) == dtype
    assert dtype.dtype.metadata is None


@pytest.mark.parametrize("dtype", PACKED, ids=str)
def test_a_plain_integer_array_is_not_a_packed_one(dtype):
    assert as_dtype(np.zeros(3, dtype.dtype.str).dtype).name == f"uint{8 * dtype.itemsize}"


@pytest.mark.parametrize("left", ["float8_e4m3fn_x4", "float8_e5m2_x4", "float4_e2m1fn_x4"])
def test_a_matmul_takes_host_arrays_of_a_packed_type(left, rng):
    """The element 1.0 of the type in every place, scale 2 ** 0: each product is the number of contracted elements."""
    code = {"float8_e4m3fn_x4": 0x38383838, "float8_e5m2_x4": 0x3C3C3C3C, "float4_e2m1fn_x4": 0x2222}[left]
    stationary, moving = (np.full((32, n), code, dtype=getattr(nl, left)) for n in (4, 6))
    scales = [np.full((32, n), 127, np.uint8) for n in (4, 6)]

    def kernel(s, m, s_scale, m_scale):
        psum = nl.ndarray((4, 6), nl.float32, buffer=nl.psum)
        tiles = [nl.ndarray(x.shape, x.dtype) for x in (s, m, s_scale, m_scale)]
        for tile, source in zip(tiles, (s, m, s_scale, m_scale), strict=True):
            nisa.dma_copy(dst=tile, src=source)
        nisa.nc_matmul_mx(dst=psum, stationary=tiles[0], moving=tiles[1], stationary_scale=tiles[2], moving_scale=tiles[3])
        out, staged = nl.ndarray((4, 6), nl.float32, buffer=nl.shared_hbm), nl.ndarray((4, 6), nl.float32)
        nisa.tensor_copy(dst=staged, src=psum)
        nisa.dma_copy(dst=out, src=staged)
        return out

    result = launch(kernel, (stationary, moving, *scales), options=SimOptions(chip=get_chip("trn3")))
    np.testing.assert_array_equal(result.outputs[0], np.full((4, 6), 32 * 4))
