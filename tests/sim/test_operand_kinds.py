"""Host arrays, numbers and None are refused where an instruction takes a tensor, by name and with the remedy."""

import inspect

import constraint_cases
import numpy as np
import pytest

from nki_hf.chips import get_chip
from nki_hf.errors import KernelFault
from nki_hf.sim import SimOptions, isa, launch
from nki_hf.sim import language as nl

TRN3 = SimOptions(chip=get_chip("trn3"))
MEETINGS = ("sendrecv", "core_barrier")


def tensor_arguments(opcode):
    """Names of the arguments of the instruction's valid call that are tensors, with the annotation of each."""
    names = []
    launch(lambda: names.extend(_names(constraint_cases.BASE[opcode]())), (), options=TRN3)
    known = inspect.signature(getattr(isa, opcode)).parameters
    return {name: known[name].annotation for name in names}


def _names(call):
    return [name for name, value in call.items() if isinstance(value, nl.NkiTensor)]


def with_argument(opcode, name, value):
    """A kernel that issues the valid call with one argument replaced."""
    return lambda: getattr(isa, opcode)(**{**constraint_cases.BASE[opcode](), name: value})


@pytest.mark.parametrize("opcode", [name for name in constraint_cases.BASE if hasattr(isa, name)])
def test_what_is_no_tensor_is_refused_by_name(opcode):
    for name, annotation in tensor_arguments(opcode).items():
        wrong = [np.ones((4, 4), np.float32)]
        if annotation == "NkiTensor":
            wrong += [None, 3]
        if annotation == "NkiTensor | None":
            wrong.append(3)
        for value in wrong:
            with pytest.raises(KernelFault) as caught:
                launch(with_argument(opcode, name, value), (), options=TRN3, lnc=2 if opcode in MEETINGS else None)
            record = caught.value.record
            assert (record.kind, record.instruction) == ("argument", opcode)
            assert name in record.message
            assert ("nl.shared_constant" in record.advice) == isinstance(value, np.ndarray)


def test_a_host_array_among_the_sources_of_a_transfer_is_refused():
    call = with_argument("dma_compute", "srcs", [np.ones((4, 4), np.float32)])
    with pytest.raises(KernelFault, match=r"srcs is an array of the host"):
        launch(call, (), options=TRN3)


def test_a_type_that_the_language_lacks_names_the_argument():
    with pytest.raises(TypeError, match=r"^weights: .*float64.* weights\.astype\(np\.float32\)"):
        launch(lambda weights: None, (np.zeros((2, 2)),))


def test_arguments_that_do_not_fit_name_the_kernel():
    def scale(x):
        return x

    with pytest.raises(TypeError, match="scale: missing a required argument: 'x'"):
        launch(scale, ())
    with pytest.raises(TypeError, match="scale: too many positional arguments"):
        launch(scale, (np.zeros(1, np.float32), 2))


@pytest.mark.parametrize(
    ("opcode", "name"),
    [
        (opcode, name)
        for opcode in constraint_cases.BASE
        if hasattr(isa, opcode)
        for name, item in inspect.signature(getattr(isa, opcode)).parameters.items()
        if item.annotation in ("int", "int | None")
    ],
)
def test_a_fraction_is_refused_where_an_int_is_demanded(opcode, name):
    for value in (1.5, 1.0):
        with pytest.raises(KernelFault, match=rf"{name}={value}, must be an int"):
            launch(with_argument(opcode, name, value), (), options=TRN3, lnc=2 if opcode in MEETINGS else None)


@pytest.mark.parametrize("scalar", [lambda: isa.NkiScalar(1), lambda: isa.register_alloc(1)], ids=["scalar", "register"])
def test_a_value_of_run_time_is_no_operand(scalar):
    for opcode, name in (("tensor_scalar", "operand0"), ("activation", "bias"), ("iota", "offset"), ("memset", "value")):
        call = lambda opcode=opcode, name=name: with_argument(opcode, name, scalar())()  # noqa: E731
        with pytest.raises(KernelFault, match=name):
            launch(call, (), options=TRN3)
