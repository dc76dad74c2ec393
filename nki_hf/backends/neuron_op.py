"""The custom op of each Neuron world around one plain annotated function.

native: `torch_neuronx.nki_op`, which infers the schema from the annotations, re-traces the function with fake tensors to
learn its outputs, and lowers the kernel inside `torch.compile`; a plain `torch.library.custom_op` would stay opaque there.
xla: no registration exists; the function calls the kernel directly, inside an `autograd.Function` if it has gradients.
"""

from __future__ import annotations

import typing
from collections.abc import Callable
from typing import Any

from nki_hf.backends.neuron_world import Host, detect_world
from nki_hf.errors import BackendUnavailable

__all__ = ["direct_op", "register_native_op"]

Backward = Callable[..., tuple[Any, ...]]
Setup = Callable[[Any, tuple[Any, ...], Any], None]

_registered: set[str] = set()


def register_native_op(
    name: str,
    function: Callable[..., Any],
    backward: Backward | None = None,
    setup_context: Setup | None = None,
    host: Host | None = None,
) -> bool:
    """Make `torch.ops.<namespace>.<op>` exist for tensors on `neuron`; True, and the first call only does anything.

    A caller inside `torch.compile` wraps this in `torch.compiler.assume_constant_result`, then calls the op by name.

    Args:
      name: qualified op name, `namespace::op`.
      function: every parameter and the result annotated with tensors, optional tensors, int, float, bool or str; only
        tensor ops and kernel calls on the way; fresh outputs.
      backward: gradient of each argument from `(ctx, *grad_outputs)`, None where there is none.
      setup_context: saves for `backward`: `(ctx, inputs, output)`.

    Raises:
      BackendUnavailable: this process does not have the native world.
    """
    if name in _registered:
        return True
    world = detect_world(host)
    if world.name != "native":
        raise BackendUnavailable(
            f"tensors on neuron need the native world, this process has {world.name}: "
            f"{world.problem or 'the two worlds cannot share a process. Move the model to xla by torch_neuronx.trace.'}"
        )
    # The schema is read from real types, so annotations that a `from __future__` import left as text are resolved first.
    function.__annotations__ = typing.get_type_hints(function)
    op = world.torch_neuronx.module.nki_op(name, mutates_args={})(function)
    if backward is not None:
        op.register_autograd(backward, setup_context=setup_context)
    _registered.add(name)
    return True


def direct_op(function: Callable[..., Any], backward: Backward, setup_context: Setup) -> Callable[..., Any]:
    """`function` as a differentiable callable without a schema, for the xla world; arguments as in `register_native_op`."""
    import torch

    class Direct(torch.autograd.Function):  # type: ignore[misc,unused-ignore]
        @staticmethod
        def forward(*inputs: Any) -> Any:
            return function(*inputs)

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
            setup_context(ctx, inputs, output)

        @staticmethod
        def backward(ctx: Any, *grad_outputs: Any) -> tuple[Any, ...]:
            return backward(ctx, *grad_outputs)

    return typing.cast(Callable[..., Any], Direct.apply)
