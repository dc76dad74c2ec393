"""What `nki.jit` gives: a kernel that checks its launch against the documented contract and runs on the simulator."""

import inspect
import math

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensor

from fake_neuron.arrays import numpy_dtype, to_numpy, to_torch, torch_dtype
from fake_neuron.front_end import check_constant, check_source, check_unchanged, read_globals
from fake_neuron.machine import MACHINE
from fake_neuron.rules import refuse
from fake_neuron.tensor import DeviceTensor, adopted, on_device
from nki_hf import sim
from nki_hf.chips import get_chip
from nki_hf.errors import KernelFault
from nki_hf.sim import SimOptions
from nki_hf.sim.execution.current_machine import running_machine

__all__ = ["FakeKernel", "NkiValidationError"]

REFUSED_DTYPES = (torch.float64, torch.int64, torch.uint64, torch.bool, torch.complex64, torch.complex128)


class NkiValidationError(ValueError):
    """nki's own refusal of a malformed launch."""


class FakeKernel:
    """One kernel at one LNC. Kernels without a bracket run at LNC 1."""

    def __init__(self, function, lnc=1):
        self.function = function
        self.lnc = lnc
        self.__name__ = function.__name__
        for name, parameter in inspect.signature(function).parameters.items():
            if parameter.kind is not parameter.POSITIONAL_OR_KEYWORD:
                refuse("signature-kinds", f"{function.__name__}: parameter {name} is {parameter.kind.description}")

    def __getitem__(self, lnc):
        if type(lnc) is not int or lnc not in (1, 2):
            refuse("lnc-bare-int", f"{self.__name__}[{lnc!r}]")
        return FakeKernel(self.function, lnc)

    def __call__(self, *args, **kwargs):
        if running_machine() is not None:  # a kernel inside a kernel runs as its function
            return self.function(*args, **kwargs)
        MACHINE.check_environment()
        bound = inspect.signature(self.function).bind(*args, **kwargs)
        bound.arguments.update({name: adopted(value) for name, value in bound.arguments.items()})
        parameters = inspect.signature(self.function).parameters
        if len(bound.arguments) != len(parameters):
            missing = [name for name in parameters if name not in bound.arguments]
            refuse("all-parameters", f"{self.__name__} was called without {', '.join(missing)}")
        device = self._check_arguments(bound.arguments)
        self._check_lnc()
        key = (self.__name__, self.lnc, *[_key(value) for value in bound.arguments.values()])
        fake = any(isinstance(_inner(value), FakeTensor) for value in bound.arguments.values())
        if fake:
            outputs = self._shapes(key, bound.arguments)
        else:
            outputs = self._run(key, bound.arguments)
        wrapped = tuple(on_device(tensor, device) for tensor in outputs)
        return wrapped[0] if len(wrapped) == 1 else wrapped

    def _check_arguments(self, arguments):
        devices = set()
        for name, value in arguments.items():
            if isinstance(value, torch.Tensor):
                devices.add(_check_tensor(self.__name__, name, value))
            else:
                check_constant(self.__name__, name, value, lambda item: isinstance(item, torch.Tensor))
        if not devices:
            refuse("tensor-on-device", f"{self.__name__} was called without tensors")
        if len(devices) > 1:
            refuse("tensor-one-device", f"{self.__name__} was called with tensors on {sorted(devices)}")
        return devices.pop()

    def _check_lnc(self):
        before_0_7 = tuple(map(int, MACHINE.nki_version.split(".")[:2])) < (0, 7)
        if self.lnc != MACHINE.lnc and not before_0_7:
            refuse("lnc-agrees", f"{self.__name__}[{self.lnc}] on a machine whose LNC is {MACHINE.lnc}")
        known = MACHINE.lnc_of_kernel.setdefault(self.__name__, self.lnc)
        if known != self.lnc:
            refuse("lnc-one-per-process", f"{self.__name__} ran at LNC {known} and is launched at {self.lnc}")

    def _shapes(self, key, arguments):
        """Re-trace on shapes alone, as the real package does under fake tensors; outputs are fake tensors."""
        mode = next(_inner(value).fake_mode for value in arguments.values() if isinstance(_inner(value), FakeTensor))
        if key not in MACHINE.shapes:
            outputs = self._launch(arguments, values=False)
            MACHINE.shapes[key] = [(tuple(tensor.shape), torch_dtype(tensor.dtype)) for tensor in outputs]
        with mode:
            return [torch.empty(shape, dtype=dtype) for shape, dtype in MACHINE.shapes[key]]

    def _run(self, key, arguments):
        MACHINE.launches.append((key, MACHINE.where))
        MACHINE.kernel_in_graph(key)
        if MACHINE.latches and MACHINE.broken(self.__name__) is not None:
            return self._latch(arguments)
        arrays = {name: to_numpy(value.inner) for name, value in arguments.items() if isinstance(value, DeviceTensor)}
        program, known = MACHINE.programs.get(key, (None, ()))
        if program is None:
            program = self._compile(key, arguments)
        check_unchanged(self.__name__, known)
        # program.outputs are NaN until written, so an output element that no core wrote stays visible
        return [to_torch(np.array(output)) for output in program(arrays)]

    def _latch(self, arguments):
        """Fail later: outputs of the right shapes now, the error at the next op on the device."""
        outputs = [
            torch.full(tuple(out.shape), torch.nan, dtype=torch_dtype(out.dtype))
            for out in self._launch(arguments, values=False)
        ]
        MACHINE.latched = MACHINE.broken(self.__name__)
        return outputs

    def _compile(self, key, arguments):
        problem = MACHINE.broken(self.__name__)
        if problem is not None:
            raise RuntimeError(problem)
        known = read_globals(self.function)
        returned = self._launch(arguments, values=True)
        check_source(self.function)  # last: a rule of its own says more than the source does
        need = sum(math.prod(value.shape) * value.element_size() for value in arguments.values() if hasattr(value, "stride"))
        need += sum(tensor.size * tensor.itemsize for tensor in returned)
        if need > MACHINE.hbm_bytes:
            raise RuntimeError(f"NRT_RESOURCE: failed to allocate {need:,} bytes of device memory, {MACHINE.hbm_bytes:,} free")
        MACHINE.compiled(self.__name__, key)
        MACHINE.programs[key] = self._program, known
        return self._program

    def _launch(self, arguments, *, values):
        """Run the kernel's Python once on the simulator; its returned tensors, after checking where they live."""
        returned = []

        def recorded(*args):
            out = self.function(*args)
            returned.append(out)
            return out

        # On shapes alone a tracer goes through the body of a loop of run time once, whatever its count will be.
        turns = {} if values else {"trip_counts": 1}
        options = SimOptions(chip=get_chip(MACHINE.chip), values=values, record=values, events=False, **turns)
        inputs = [
            (to_numpy(value.inner) if values else _empty(value)) if isinstance(value, DeviceTensor) else value
            for value in arguments.values()
        ]
        recorded.__signature__ = inspect.signature(self.function)
        recorded.__name__ = self.__name__
        try:
            result = sim.launch(sim.Kernel(recorded), inputs, options=options, lnc=self.lnc)
        except KernelFault as error:
            if error.record.kind == "output":
                refuse("output-shared-hbm", str(error))
            raise
        self._program = result.program
        outputs = returned[0] if isinstance(returned[0], tuple | list) else (returned[0],)
        for output in outputs:
            _check_output(self.__name__, output)
        return outputs


def _empty(value):
    """An array of the tensor's shape and dtype that holds no data of its own."""
    return np.broadcast_to(np.zeros((), numpy_dtype(value.dtype)), tuple(value.shape))


def _check_tensor(kernel, name, value):
    if value.device.type == "cpu":
        refuse("tensor-on-device", f"{kernel}: {name} is on the CPU")
    if isinstance(value, torch.nn.Parameter):
        refuse("tensor-plain", f"{kernel}: {name} is a Parameter")
    if value.dtype in REFUSED_DTYPES:
        refuse("tensor-dtype", f"{kernel}: {name} is {value.dtype}")
    if not value.is_contiguous():
        refuse("tensor-dense", f"{kernel}: {name} has strides {value.stride()} for shape {tuple(value.shape)}")
    if value.storage_offset():
        refuse("tensor-offset", f"{kernel}: {name} starts at element {value.storage_offset()} of its storage")
    return str(value.device)


def _check_output(kernel, output):
    if output.storage.buffer.role == "input":
        refuse("output-fresh", f"{kernel} returns its input {output!r}")
    if output.space != "shared_hbm":
        refuse("output-shared-hbm", f"{kernel} returns {output!r}")


def _key(value):
    return (tuple(value.shape), str(value.dtype)) if isinstance(value, torch.Tensor) else value


def _inner(value):
    return value.inner if isinstance(value, DeviceTensor) else value
