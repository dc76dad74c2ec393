"""`nki.typing`: annotations of kernel parameters; they have no effect."""

from __future__ import annotations

from typing import Any

from nki_hf.sim.tensors.tensor import NkiTensor

__all__ = ["mutable_tensor", "tensor"]


class _TensorAnnotation:
    """Stands for a tensor in a signature: `x: tensor`, `x: tensor[128, 512]`, `x: tensor(...)`."""

    def __getitem__(self, _: Any) -> type[NkiTensor]:
        return NkiTensor

    def __call__(self, *_: Any, **__: Any) -> type[NkiTensor]:
        return NkiTensor

    def __or__(self, other: Any) -> Any:
        return NkiTensor | other

    __ror__ = __or__


tensor = _TensorAnnotation()
mutable_tensor = _TensorAnnotation()
