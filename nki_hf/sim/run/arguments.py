"""Arguments of a launch: host arrays become HBM tensors, results become host arrays, inputs written in place go back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from nki_hf.errors import FaultRecord, KernelFault
from nki_hf.sim.execution.machine import Machine
from nki_hf.sim.faults import fault
from nki_hf.sim.host import as_numpy, as_torch, is_host_array, is_torch
from nki_hf.sim.tensors.tensor import NkiTensor

__all__ = ["Arguments", "returned_tensors"]


class Arguments:
    """The host arrays of one launch and the HBM tensors that stand for them.

    Attributes:
      tensors: HBM tensors by parameter name (`name[0]` inside containers).
    """

    def __init__(self, machine: Machine) -> None:
        self.tensors: dict[str, NkiTensor] = {}
        self._machine = machine
        self._hosts: dict[int, Any] = {}
        self._copied: list[tuple[NkiTensor, Any]] = []
        self._torch = False

    def bind(self, name: str, value: Any) -> Any:
        """`value` as the kernel sees it: arrays as tensors, also inside tuples, lists and dicts; the rest as it is."""
        if is_host_array(value):
            return self._bind_array(name, value)
        if type(value) in (tuple, list):
            return type(value)(self.bind(f"{name}[{i}]", item) for i, item in enumerate(value))
        if type(value) is dict:
            return {key: self.bind(f"{name}[{key!r}]", item) for key, item in value.items()}
        return value

    def write_back(self) -> None:
        """Copy inputs that the kernel wrote back to arrays whose memory it could not share."""
        for tensor, host in self._copied:
            if tensor.storage.buffer.number not in self._machine.run.modified:
                continue
            if is_torch(host):
                host.detach().copy_(as_torch(tensor.array()))
            elif host.flags.writeable:
                host[...] = tensor.array().astype(host.dtype)
            else:
                fault(
                    "output",
                    "argument",
                    f"the kernel writes its input {tensor.name}, a read-only array",
                    limit="inputs that are written in place must be writable",
                    advice="Pass a copy",
                )

    def release(self, value: Any) -> Any:
        """The kernel's return value with each HBM tensor as an array of the inputs' kind; inputs come back themselves."""
        if isinstance(value, NkiTensor):
            buffer = value.storage.buffer
            host = self._hosts.get(buffer.number)
            if host is not None and value.shape == buffer.shape and value.is_contiguous():
                return host
            array = value.array()
            return as_torch(array) if self._torch else array.copy()
        if type(value) in (tuple, list):
            return type(value)(self.release(item) for item in value)
        if type(value) is dict:
            return {key: self.release(item) for key, item in value.items()}
        return value

    def _bind_array(self, name: str, host: Any) -> NkiTensor:
        array = as_numpy(host)
        self._torch = self._torch or is_torch(host)
        try:
            element = self._machine.element(array.dtype)
        except TypeError as error:
            raise TypeError(f"{name}: {error} Cast it before the launch, e.g. {name}.astype(np.float32).") from None
        run = self._machine.run
        stored = np.ascontiguousarray(array, dtype=element.dtype).reshape(array.shape)
        if run.options.record and np.shares_memory(stored, array):
            stored = stored.copy()  # a replay overwrites the program's own memory, never the first caller's arrays
        shares = stored.size == 0 or np.shares_memory(stored, array)
        if shares and not stored.flags.writeable:
            stored, shares = stored.copy(), False
        data = stored.reshape(-1).view(np.uint8) if stored.size else np.empty(0, np.uint8)
        space = "shared_hbm" if run.lnc > 1 else "hbm"
        storage = self._machine.allocate(tuple(array.shape), element, space, name=name, role="input", data=data)
        tensor = self.tensors[name] = NkiTensor(tuple(array.shape), element, storage, name=name)
        self._hosts[storage.buffer.number] = host
        if not shares:
            self._copied.append((tensor, host))
        return tensor


def returned_tensors(value: Any) -> list[NkiTensor]:
    """The tensors in a kernel's return value, in order.

    Raises:
      KernelFault: one of them is on chip.
    """
    found: list[NkiTensor] = []

    def walk(item: Any) -> None:
        if isinstance(item, NkiTensor):
            if item.on_chip:
                buffer = item.storage.buffer  # the kernel has returned: the line is that of the tensor's allocation
                raise KernelFault(
                    FaultRecord(
                        kind="output",
                        instruction="return",
                        message=f"the kernel returns {item!r}",
                        limit="outputs must be in HBM",
                        advice="Copy it with dma_copy into nl.ndarray(..., buffer=nl.shared_hbm)",
                        operands=(repr(item),),
                        file=buffer.file,
                        line=buffer.line,
                        details={"space": buffer.space},
                    )
                )
            found.append(item)
        children: Callable[[], Any] | None = item.values if type(item) is dict else None
        if type(item) in (tuple, list):
            for child in item:
                walk(child)
        elif children is not None:
            for child in children():
                walk(child)

    walk(value)
    return found
