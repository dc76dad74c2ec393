"""Arrays of the host: NumPy arrays and torch tensors as NumPy views of their memory, and results as the caller's kind.

torch is never imported here: a tensor can only arrive if its package is loaded already. A tensor keeps nothing of having
been looked at: `Tensor.numpy()` and `torch.from_numpy` forbid for good that its storage is resized, which sharded training
(FSDP2) does to every weight after use; DLPack does not.
"""

from __future__ import annotations

import sys
from typing import Any

import ml_dtypes
import numpy as np

from nki_hf.sim.dtypes import ALL_DTYPES

__all__ = ["as_numpy", "as_torch", "is_host_array", "is_torch"]

_BY_BITS = {"bfloat16": "int16", "float8_e4m3fn": "uint8", "float8_e5m2": "uint8", "float8_e8m0fnu": "uint8"}
"""torch types that NumPy lacks, and the integer type of their width through which the bits travel."""


def is_torch(value: Any) -> bool:
    """True for a torch tensor."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def is_host_array(value: Any) -> bool:
    """True for what becomes an HBM tensor: a NumPy array or a torch tensor."""
    return isinstance(value, np.ndarray) or is_torch(value)


def as_numpy(value: Any) -> np.ndarray[Any, Any]:
    """NumPy view of the array's memory, bit for bit; may be read-only (NumPy 2.0). It keeps a tensor's memory alive until
    the storage is resized.

    Raises:
      TypeError: the tensor is not in CPU memory, or its memory holds its negative.
    """
    if isinstance(value, np.ndarray):
        return value
    if value.device.type != "cpu":
        raise TypeError(f"device={value.device} is not simulated: pass CPU tensors, e.g. tensor.cpu(), or run on Neuron.")
    if value.is_neg():
        raise TypeError("tensor.is_neg()=True is not supported: its memory holds other values. Pass tensor.resolve_neg().")
    torch, tensor = sys.modules["torch"], value.detach()
    name = str(tensor.dtype).removeprefix("torch.")
    if name not in _BY_BITS:
        return np.from_dlpack(tensor)
    return np.from_dlpack(tensor.view(getattr(torch, _BY_BITS[name]))).view(ALL_DTYPES[name].dtype)


def as_torch(array: np.ndarray[Any, Any]) -> Any:
    """Torch tensor with the array's values in memory of its own.

    Raises:
      TypeError: torch has no such type.
    """
    torch, array = sys.modules["torch"], np.asarray(array, order="C")
    name = array.dtype.name
    if name in _BY_BITS:
        return torch.from_numpy(array.view(_BY_BITS[name])).view(getattr(torch, name)).clone()
    if array.dtype == np.dtype(ml_dtypes.float8_e4m3):
        raise TypeError("dtype=float8_e4m3 has no torch type: return bfloat16 or float8_e4m3fn, or pass NumPy arrays.")
    return torch.from_numpy(array).clone()
