"""Between torch's CPU tensors and NumPy arrays, bit for bit, bfloat16 included."""

import ml_dtypes
import numpy as np
import torch

__all__ = ["numpy_dtype", "to_numpy", "to_torch", "torch_dtype"]

_TORCH = {"bfloat16": torch.bfloat16, "uint16": torch.uint16, "uint32": torch.uint32}


def to_numpy(tensor):
    """The tensor's values as a NumPy array of the same element type."""
    if tensor.dtype == torch.bfloat16:
        return tensor.contiguous().view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.contiguous().numpy()


def to_torch(array):
    """The array's values as a torch tensor of the same element type."""
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def numpy_dtype(dtype):
    """NumPy's element type for a torch dtype."""
    name = str(dtype).removeprefix("torch.")
    return np.dtype(ml_dtypes.bfloat16) if name == "bfloat16" else np.dtype(name)


def torch_dtype(dtype):
    """torch's element type for a simulator dtype."""
    name = str(dtype)
    return _TORCH.get(name) or getattr(torch, name)
