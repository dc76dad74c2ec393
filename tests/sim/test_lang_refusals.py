"""What kernels get wrong about tensors, numbers and indices, and the fault that says so (never an exception without a name)."""

import operator

import numpy as np
import pytest

from nki_hf.errors import KernelFault
from nki_hf.sim import SimOptions, launch
from nki_hf.sim import isa as nisa
from nki_hf.sim import language as nl
from nki_hf.sim.faults import SimulatorWarning

X = np.arange(12, dtype=np.float32).reshape(3, 4)


def refused(body, match, *arrays, kind=None):
    """The fault of `body(tile, *tensors)`."""
    with pytest.raises(KernelFault, match=match) as caught:
        launch(lambda x, *rest: (body(nl.load(x), *rest), None)[1], (X, *arrays))
    assert kind is None or caught.value.record.kind == kind
    assert caught.value.record.file == __file__
    return caught.value.record


@pytest.mark.parametrize(
    ("use", "advice"),
    [
        (lambda t: t + t, "nl.add"), (lambda t: 1.0 - t, "nl.subtract"), (lambda t: t * 2, "nl.multiply"),
        (lambda t: t / 2, "nl.divide"), (lambda t: t**2, "nl.power"), (lambda t: t @ t, "nl.matmul"),
        (lambda t: -t, "nl.negative"), (abs, "nl.abs"), (lambda t: t == 3.0, "nl.equal"), (lambda t: t != 3.0, "nl.equal"),
        (lambda t: t < 3, "nl.less"), (lambda t: 3 >= t, "nl.less_equal"),
        (np.sum, "nl.sum"), (np.exp, "nl.exp"), (lambda t: np.add(t, 1), "nl.add"),
        (lambda t: np.float32(2) * t, "nl.multiply"),
        (np.mean, "nl.mean"), (np.asarray, "functions of nl and nisa"), (lambda t: np.concatenate([t, t]), "functions of nl"),
        (lambda t: X + t, "nl.add"),
    ],
)  # fmt: skip
def test_operators_and_numpy_functions_name_the_function_of_the_language(use, advice):
    record = refused(use, "neither Python's operators nor NumPy's functions", kind="unsupported")
    assert advice in record.advice


def test_a_tensor_equals_itself_and_never_none():
    def kernel(x):
        tile, other = nl.load(x), nl.load(x)
        assert tile == tile
        assert not tile != tile
        assert tile != None  # noqa: E711  (what public kernels write)
        assert [other, tile].index(other) == 0
        assert {tile: 1}[tile] == 1
        with pytest.raises(KernelFault, match=r"nl\.equal"):
            operator.eq(tile, other)

    launch(kernel, (X,))


@pytest.mark.parametrize(
    ("use", "name"),
    [
        (lambda t: nisa.iota(dst=t, pattern=[[1.5, 4]]), "step=1.5"),
        (lambda t: nisa.iota(dst=t, pattern=[[1, 4.0]]), "count=4.0"),
        (lambda t: nisa.iota(dst=t, pattern=[[1, 4]], offset=0.9), "offset=0.9"),
        (lambda t: nisa.iota(dst=t, pattern=[[1, 4]], channel_multiplier=0.5), "channel_multiplier=0.5"),
        (lambda t: nisa.iota(dst=t, pattern=[1, 4]), "list of pairs"),
        (lambda t: nisa.affine_select(dst=t, pattern=[[1.5, 4]], channel_multiplier=0, on_true_tile=t, on_false_value=0.0),
         "step=1.5"),
        (lambda t: nisa.affine_select(dst=t, pattern=[[1, 4]], channel_multiplier=0, on_true_tile=t, on_false_value=0.0,
                                      offset=-3.5), "offset=-3.5"),
        (lambda t: t.ap([[4, 3], [1, 2.5]]), "count=2.5"), (lambda t: t.ap([[4, 3], [0.5, 2]]), "step=0.5"),
        (lambda t: t.ap([[4, 3], [1, 2]], offset=1.0), "offset=1.0"), (lambda t: t.ap([[4, 3], [1, 2]], offset=t), "offset="),
        (lambda t: nl.ndarray((4.0, 4), nl.float32), "size=4.0"), (lambda t: nl.zeros((3, 2.5), nl.float32), "size=2.5"),
        (lambda t: t.slice(1, 0.5, 2), "start=0.5"), (lambda t: t.slice(1, 0, 2.0), "end=2.0"),
        (lambda t: t.select(1, 1.0), "index=1.0"), (lambda t: t.reshape((3, 4.0)), "size=4.0"),
        (lambda t: t.reshape_dim(1, (2, 2.0)), "size=2.0"), (lambda t: t.expand_dim(1).broadcast(1, 2.0), "size=2.0"),
        (lambda t: t.expand_dim(1).squeeze_dim(1.0), "dim=1.0"), (lambda t: nl.shared_identity_matrix(4.0), "n=4.0"),
        (lambda t: nl.ndarray((nisa.register_alloc(3), 4), nl.float32), "size="),
    ],
)  # fmt: skip
def test_a_whole_number_is_never_made_by_cutting_a_float(use, name):
    refused(use, name, kind="argument")


def test_numpys_integers_are_whole_numbers():
    def kernel(x):
        tile = nl.ndarray((np.int64(3), np.int32(4)), nl.float32)
        nisa.iota(dst=tile, pattern=[[np.int64(2), np.int32(4)]], offset=np.int16(1))
        assert tile.select(1, np.int64(2)).shape == (3, 1)
        out = nl.ndarray((3, 4), nl.float32, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=out, src=tile)
        return out

    np.testing.assert_array_equal(launch(kernel, (X,)).outputs[0], np.tile(1 + 2 * np.arange(4), (3, 1)))


@pytest.mark.parametrize("key", ["a", None, [0, 1], 1.5, (0, None), slice(0, 2.5), slice("a", None), nl.ds(0, 1.5)])
def test_a_subscript_of_another_type_is_a_named_fault(key):
    refused(lambda t: t[key], r"index: \[.*subscripts are ints", kind="argument")


@pytest.mark.parametrize(
    ("key", "shown"),
    [(slice(2, 9), "2:9"), (slice(-9, None), "-9:"), (slice(None, 40, 2), ":40:2"), (nl.ds(2, 5), r"nl\.ds\(2, 5\)")],
)
def test_a_slice_that_leaves_the_tensor_is_shown_as_it_was_written(key, shown):
    refused(lambda t: t[:, key], f"slice {shown} on axis 1 ", kind="bounds")


def gather(index_dtype, rows=2):
    def kernel(x, i):
        tile = nl.ndarray((rows, 4), nl.float32)
        nisa.dma_copy(dst=tile, src=x.ap([[4, rows], [1, 4]], vector_offset=nl.load(i), indirect_dim=0))
        out = nl.ndarray((rows, 4), nl.float32, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=out, src=tile)
        return out

    return kernel, np.array([[1], [2]]).astype(index_dtype)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_floats_are_no_indices(dtype):
    kernel, index = gather(dtype)
    with pytest.raises(KernelFault, match="run-time indices are int32 or uint32"):
        launch(kernel, (X, index), options=SimOptions(third_party=True))
    for use in (
        lambda t, i: t.select(1, nl.load(i[0:1])),
        lambda t, i: t.ap([[4, 3], [1, 1]], scalar_offset=nl.load(i[0:1]), indirect_dim=1),
    ):
        refused(use, "run-time indices are int32 or uint32", index)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int64"])
def test_other_integers_than_documented_are_refused_to_us_and_warned_of_to_others(dtype):
    kernel, index = gather(dtype)
    with pytest.raises(KernelFault, match="run-time indices are int32 or uint32"):
        launch(kernel, (X, index))
    with pytest.warns(SimulatorWarning, match="run-time indices are int32 or uint32"):
        result = launch(kernel, (X, index), options=SimOptions(third_party=True))
    assert result.outputs[0].tolist() == X[[1, 2]].tolist()
    for shown in ("int32", "uint32"):
        kernel, index = gather(shown)
        assert launch(kernel, (X, index)).outputs[0].tolist() == X[[1, 2]].tolist()


@pytest.mark.parametrize("element", ["float32", "bfloat16"])
def test_a_step_of_the_views_own_free_size_is_refused_to_us_and_warned_of_to_others(element):
    def kernel(x):
        tile = nl.load(x)
        ratio = tile.dtype.itemsize // getattr(nl, element).itemsize
        half = tile[:, 2:4].ap([[2 * ratio, 3], [1, 2 * ratio]], dtype=getattr(nl, element))
        out = nl.ndarray(half.shape, half.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=out, src=half)
        return out

    with pytest.raises(KernelFault, match="the partition step is"):
        launch(kernel, (X,))
    with pytest.warns(SimulatorWarning, match="the free size of "):
        result = launch(kernel, (X,), options=SimOptions(third_party=True))
    assert result.outputs[0].tobytes() == X[:, 2:4].tobytes()
    other = lambda x: (nl.load(x)[:, 2:4].ap([[3, 3], [1, 2]]), None)[1]  # noqa: E731
    with pytest.raises(KernelFault, match="the partition step is 3"):
        launch(other, (X,), options=SimOptions(third_party=True))


def test_a_register_of_a_tensor_is_refused_to_us_and_loaded_for_others_with_a_warning():
    def kernel(x):
        turns, total = nisa.register_alloc(nl.load(x)[0, 0]), nl.zeros((1, 1), nl.int32)
        for _ in nl.dynamic_range(turns):
            nisa.tensor_scalar(dst=total, data=total, op0=nl.add, operand0=3)
        out = nl.ndarray((1, 1), nl.int32, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=out, src=total)
        return out

    with pytest.raises(KernelFault, match=r"must be an int or None .*Load tensors with register_load"):
        launch(kernel, (np.array([[4]], np.int32),))
    with pytest.warns(SimulatorWarning, match="register_alloc: x="):
        result = launch(kernel, (np.array([[4]], np.int32),), options=SimOptions(third_party=True))
    assert result.outputs[0].tolist() == [[12]]
    with pytest.raises(KernelFault, match="exactly one element"), pytest.warns(SimulatorWarning):
        launch(lambda x: (nisa.register_alloc(nl.load(x)), None)[1], (X,), options=SimOptions(third_party=True))


def test_a_run_time_index_that_leaves_names_the_tensor_the_range_and_advice_only_where_there_is_a_mode():
    kernel, _ = gather("uint32")
    with pytest.raises(KernelFault, match=r"run-time index 7 \(entry 1\) leaves x\[3, 4\] .*must be 0 to 2") as caught:
        launch(kernel, (X, np.array([[1], [7]], np.uint32)))
    assert "oob_mode.skip" in caught.value.record.advice

    def column(tile, i):
        view = tile.ap([[4, 2], [1, 2]], scalar_offset=nl.load(i), indirect_dim=1)
        nisa.tensor_copy(dst=nl.ndarray((2, 2), nl.float32), src=view)

    for index in (3, 11):  # of two neighbours the second would lie in the next partition, or nowhere
        message = rf"run-time index {index} \(entry 0\) leaves \S+\[3, 4\] float32 sbuf, must be 0 to 2"
        assert refused(column, message, np.array([[index]], np.int32)).advice == ""


def test_a_scatter_that_adds_refuses_an_index_that_stands_twice():
    def kernel(x, i):
        rows = x.ap([[4, 2], [1, 4]], vector_offset=nl.load(i), indirect_dim=0)
        nisa.dma_compute(dst=rows, srcs=[rows, nl.ones((2, 4), nl.float32)], reduce_op=nl.add)

    added = X.copy()
    launch(kernel, (added, np.array([[2], [0]], np.uint32)))
    assert added.tolist() == np.add(X, [[1], [0], [1]]).tolist()
    with pytest.raises(KernelFault, match="row 1 is among the indices twice"):
        launch(kernel, (X.copy(), np.array([[1], [1]], np.uint32)))


def test_device_print_says_which_argument_is_which():
    refused(lambda t: nl.device_print(t, "x"), "print_prefix=.*before the tensor")
    refused(lambda t: nl.device_print("x", 3), "tensor=3")


@pytest.mark.parametrize("prob", [1.5, -0.1, float("nan")])
def test_a_probability_is_between_0_and_1(prob):
    refused(lambda t: nisa.dropout(dst=nl.zeros((3, 4), nl.float32), data=t, prob=prob), "between 0 and 1")


def test_a_tensor_of_another_launch_is_refused():
    kept = []
    launch(lambda x: kept.append(nl.load(x)), (X,))
    refused(lambda t: nisa.tensor_copy(dst=t, src=kept[0]), "allocated in another launch")


def test_a_dtype_is_of_the_type_that_annotations_name():
    def kernel(x):
        assert isinstance(x.dtype, nl.DType)
        assert isinstance("float32", nl.DType)
        assert not isinstance(3, nl.DType)
        assert nl.ndarray((1, 1), nl.DType("bfloat16")).dtype == nl.bfloat16

    launch(kernel, (X,))
