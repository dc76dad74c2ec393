"""Entry points: what kernels get, what callers get back, memory shared with the caller, chips, precision."""

import os
import sys
from dataclasses import dataclass

import ml_dtypes
import numpy as np
import pytest
import torch

from nki_hf.errors import KernelFault
from nki_hf.sim import SimOptions, jit, launch, simulate
from nki_hf.sim import isa as nisa
from nki_hf.sim import language as nl
from nki_hf.sim.options import default_chip


@jit
def add_one(a, out_dtype=None):
    """`a + 1` as a new tensor, computed in SBUF."""
    tile = nl.ndarray(a.shape, a.dtype if out_dtype is None else out_dtype)
    nisa.dma_copy(dst=tile, src=a)
    nisa.tensor_scalar(dst=tile, data=tile, op0=nl.add, operand0=1.0)
    out = nl.ndarray(a.shape, tile.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=tile)
    return out


def double_in_place(a):
    tile = nl.load(a)
    nl.store(a, nl.multiply(tile, 2.0))
    return a


@pytest.mark.parametrize(
    "call", [simulate(add_one), simulate(add_one)[1], simulate(add_one[1]), simulate(add_one.function), add_one]
)
def test_every_way_to_call_gives_the_same(call, rng):
    a = rng.standard_normal((4, 6)).astype(np.float32)
    have = call(a)
    assert isinstance(have, np.ndarray)
    np.testing.assert_array_equal(have, a + np.float32(1))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int32", "int8", "uint8", "float8_e4m3fn", "float8_e5m2"])
def test_torch_tensors_come_back_as_torch_tensors_bit_for_bit(dtype):
    def copy(a):
        out = nl.ndarray(a.shape, a.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=out, src=a)
        return out

    width = getattr(torch, dtype).itemsize
    bits = torch.arange(60, dtype=torch.int32).reshape(5, 12).to({1: torch.int8, 2: torch.int16, 4: torch.int32}[width])
    a = bits.view(getattr(torch, dtype))
    have = simulate(copy)(a)
    assert have.dtype == a.dtype
    assert torch.equal(have.view(bits.dtype), bits)


def test_a_result_that_torch_has_no_type_for_says_so():
    with pytest.raises(TypeError, match="float8_e4m3 has no torch type"):
        simulate(add_one)(torch.ones(2, 2), out_dtype=nl.float8_e4m3)


@pytest.mark.parametrize("make", [lambda a: a, lambda a: np.asfortranarray(a), lambda a: np.repeat(a, 2, 1)[:, ::2]])
def test_inputs_written_in_place_are_visible_to_the_caller(make, rng):
    a = make(rng.standard_normal((4, 6)).astype(np.float32))
    want = a * 2
    returned = simulate(double_in_place)(a)
    np.testing.assert_array_equal(a, want)
    assert returned is a


def test_torch_inputs_written_in_place_are_visible_also_when_not_contiguous():
    a = torch.arange(24, dtype=torch.bfloat16).reshape(4, 6).T
    want = a * 2
    simulate(double_in_place)(a)
    assert torch.equal(a, want)


def test_a_read_only_array_is_read_but_not_written():
    a = np.ones((2, 3), np.float32)
    a.flags.writeable = False
    np.testing.assert_array_equal(add_one(a), a + 1)
    with pytest.raises(KernelFault, match="read-only"):
        simulate(double_in_place)(a)


@dataclass
class Settings:
    scale: float


def test_python_objects_pass_through_and_containers_keep_their_shape(rng):
    seen = {}

    def kernel(pair, config, table, nothing, dtype, shape):
        seen.update(config=config, nothing=nothing, dtype=dtype, shape=shape, kinds=[type(t).__name__ for t in pair])
        out = nl.ndarray(pair[0].shape, dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=out, src=table["b"])
        return [out, (pair[1], None, "word")]

    a, b = (rng.standard_normal((2, 3)).astype(np.float32) for _ in range(2))
    config = Settings(2.0)
    result = simulate(kernel)((a, b), config, {"b": b}, None, nl.float32, (1, 2))
    assert seen == {"config": config, "nothing": None, "dtype": nl.float32, "shape": (1, 2), "kinds": ["NkiTensor"] * 2}
    assert seen["config"] is config
    np.testing.assert_array_equal(result[0], b)
    assert result[1][0] is b
    assert result[1][1:] == (None, "word")


@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (3, 0)])
def test_zero_dimensional_and_empty_arrays_pass(shape):
    def kernel(a):
        assert a.shape == shape
        return a

    a = np.zeros(shape, np.float32)
    assert simulate(kernel)(a) is a


def test_replay_leaves_the_first_callers_arrays_alone_and_updates_the_new_ones():
    first = np.ones((2, 3), np.float32)
    program = launch(double_in_place, (first,), options=SimOptions(record=True)).program
    np.testing.assert_array_equal(first, 2)
    second = np.full((2, 3), 5, np.float32)
    (have,) = program({"a": second})
    np.testing.assert_array_equal(have, 10)
    np.testing.assert_array_equal(second, 10)
    np.testing.assert_array_equal(first, 2)


def test_a_kernel_steered_by_values_cannot_be_replayed():
    def kernel(a):
        tile = nl.load(a)
        assert nl.equal(tile, tile)
        return a

    result = launch(kernel, (np.ones((2, 2), np.float32),), options=SimOptions(record=True))
    assert result.program is None
    assert "truth value" in result.run.why_not_replayable
    assert __file__ in result.run.why_not_replayable


@pytest.mark.parametrize(("target", "chip"), [("trn1", "trn1"), ("inf2", "trn1"), ("gen3", "trn2"), ("trn3", "trn3")])
def test_platform_variable_chooses_the_chip(monkeypatch, target, chip):
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", target)
    assert default_chip().name == chip
    versions = []
    simulate(lambda a: versions.append(nisa.get_nc_version().value))(np.zeros(1, np.float32))
    assert versions == [default_chip().generation]


def test_the_generation_can_be_asked_for_outside_of_a_kernel(monkeypatch):
    assert nisa.get_nc_version() == nisa.nc_version.gen3
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", "trn3")
    assert nisa.get_nc_version() == nisa.nc_version.gen4
    assert nisa.get_nc_sub_version() == 0


def test_a_fault_about_the_generation_says_how_to_choose_the_chip():
    def kernel(a):
        nisa.exponential(dst=nl.ndarray((4, 4), nl.float32), src=nl.zeros((4, 4), nl.float32))

    with pytest.raises(KernelFault, match=r"trn2.*NeuronCore-v4.*NEURON_PLATFORM_TARGET_OVERRIDE=trn3") as caught:
        simulate(kernel)(np.zeros(1, np.float32))
    assert caught.value.record.kind == "generation"


def test_unknown_platform_lists_the_known_ones(monkeypatch):
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", "trn9")
    with pytest.raises(ValueError, match=r"trn9.*trn1, inf2"):
        default_chip()


def test_high_precision_mode_keeps_low_precision_tiles_in_float32(monkeypatch):
    third = np.full((1, 1), 1 / 3, np.float32)

    def kernel(a):
        return add_one.function(a, nl.bfloat16)

    assert simulate(kernel)(third).dtype == ml_dtypes.bfloat16
    monkeypatch.setenv("NKI_PRECISE_FP", "0")
    assert os.environ["NKI_PRECISE_FP"] == "0"
    np.testing.assert_array_equal(simulate(kernel)(third), third + np.float32(1))


def test_high_precision_mode_refuses_bit_tricks_on_what_it_widened():
    def kernel(a):
        return nl.ndarray((2, 4), nl.bfloat16).view(nl.uint16)

    with pytest.raises(KernelFault, match="NKI_PRECISE_FP=0"):
        launch(kernel, (np.zeros(1, np.float32),), options=SimOptions(precise=False))


def test_jit_accepts_compiler_arguments_and_a_platform():
    @jit(mode="jax", platform_target="trn3", compile_config=object())
    def kernel(a):
        assert nisa.get_nc_version() == nisa.nc_version.gen4
        return a

    kernel(np.zeros(1, np.float32))


def test_print_and_device_print_show_values(capsys):
    def kernel(a):
        tile = nl.load(a)
        nl.device_print("tile is", tile)
        print(tile)
        return a

    program = launch(kernel, (np.full((1, 2), 7, np.float32),), options=SimOptions(record=True)).program
    first = capsys.readouterr().out
    assert first.count("[[7. 7.]]") == 2
    assert "tile is" in first
    program({"a": np.full((1, 2), 9, np.float32)})
    assert "[[9. 9.]]" in capsys.readouterr().out


def test_breakpoint_stops_in_the_kernels_own_frame(monkeypatch):
    stops = []
    monkeypatch.setattr(sys, "breakpointhook", lambda: stops.append(sys._getframe(1).f_locals["tile"].array().copy()))

    def kernel(a):
        tile = nl.load(a)
        breakpoint()
        nl.store(a, tile)
        return a

    simulate(kernel)(np.full((1, 2), 3, np.float32))
    np.testing.assert_array_equal(stops, [[[3, 3]]])


def test_registers_steer_loops_and_offsets():
    data = np.arange(8, dtype=np.float32).reshape(1, 8)

    def kernel(data, bound):
        tile = nl.load(bound)
        limit = nisa.register_alloc()
        nisa.register_load(limit, tile)
        out = nl.zeros((1, 8), nl.float32, buffer=nl.shared_hbm)
        cell = nl.ndarray((1, 1), nl.float32)

        def body(i):
            nisa.dma_copy(dst=cell, src=data.ap([[1, 1], [1, 1]], scalar_offset=i, indirect_dim=1))
            nisa.dma_copy(dst=out.ap([[1, 1], [1, 1]], scalar_offset=i, indirect_dim=1), src=cell)

        nl.fori_loop(0, limit, body, step=2)
        turns = nl.zeros((1, 1), nl.float32)

        def turn(r):
            nisa.tensor_scalar(dst=turns, data=turns, op0=nl.add, operand0=1.0)
            nisa.tensor_scalar(dst=tile, data=tile, op0=nl.subtract, operand0=1)
            nisa.register_load(r, tile)
            return r

        nl.while_loop(limit, turn)
        count = nl.ndarray((1, 1), nl.float32, buffer=nl.shared_hbm)
        nl.store(count, turns)
        return out, count

    out, count = simulate(kernel)(data, np.array([[5]], np.int32))
    np.testing.assert_array_equal(out, np.where((np.arange(8) < 5) & (np.arange(8) % 2 == 0), data, 0))
    assert count[0, 0] == 5


def test_run_time_scalars_wrap_at_their_width():
    def kernel(a):
        big = nl.NkiScalar(100_000)
        return [(big * 100_000).read(), (nl.NkiScalar(7) // 2 + 1 - 10).read()]

    assert simulate(kernel)(np.zeros(1, np.float32)) == [1_410_065_408, -6]
    with pytest.raises(KernelFault, match="compared"):
        simulate(lambda a: nl.NkiScalar(1) < 2)(np.zeros(1, np.float32))
