"""The ops `nki_hf::attention`, `attention_with_statistics` (of calls with `row_statistics`) and `attention_backward` as
torch knows them: names and schemas from the import of torch on, code from their first use.

A saved program (torch.export, torch.jit, AOTInductor) names the ops, and loads wherever this package was imported, before any
call of them and without the cost of the code behind them.
"""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import Any

__all__ = ["SCHEMAS", "define"]

_CALL = (
    "Tensor q, Tensor k, Tensor v, Tensor? lo, Tensor? hi, Tensor? bias, Tensor? sink, float? scale, float? softcap, "
    "SymInt q_offset, SymInt? window, SymInt? ahead"
)
SCHEMAS = (
    f"attention({_CALL}) -> (Tensor, Tensor)",
    f"attention_with_statistics({_CALL}, bool out_rest=True) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    "attention_backward(Tensor dout, Tensor? dlse, Tensor q, Tensor k, Tensor v, Tensor? lo, Tensor? hi, Tensor? bias, "
    "Tensor? sink, Tensor out, Tensor lse, float? scale, float? softcap, SymInt q_offset, SymInt? window, SymInt? ahead, "
    "bool needs_bias, Tensor? row_shift=None, Tensor? row_sum=None, bool row_part=False, Tensor? out_rest=None) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor)",
)


def define() -> SimpleNamespace:
    """Define the ops, and return what holds their code: `attention`, `attention_with_statistics`, `fake`, `fake_statistics` of
    adapters/torch_op.py, `backward`, `save`, `attention_backward`, `fake_backward` and `second` of op_gradients.py.

    torch takes one definition per process: a second import of this package (a notebook that drops it from sys.modules)
    finds the first one's, which then calls the new code.

    Raises:
      ImportError: the process has the definition of another version of this package.
    """
    import torch

    code: SimpleNamespace = vars(torch.ops.nki_hf).setdefault("code", SimpleNamespace(schema=None))
    if code.schema is None:
        _define(code)
    elif code.schema != SCHEMAS:
        raise ImportError("this process has imported another version of nki_hf, whose op differs: restart it.")
    return code


# `custom_op` would wrap the function in checks that cost more than the rest of the adapter; a bare definition does not.
def _define(code: SimpleNamespace) -> None:
    import torch

    def loaded() -> SimpleNamespace:
        if not hasattr(code, "attention"):
            importlib.import_module("nki_hf.adapters.torch_op")
        return code

    def save(ctx: Any, inputs: Any, output: Any) -> None:
        loaded().save(ctx, inputs, output)

    library = torch.library.Library("nki_hf", "FRAGMENT")
    for schema in SCHEMAS:
        library.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
    library.impl("attention", lambda *arguments: loaded().attention(*arguments), "CPU")
    library.impl("attention_with_statistics", lambda *arguments: loaded().attention_with_statistics(*arguments), "CPU")
    torch.library.register_fake("nki_hf::attention", lambda *arguments: loaded().fake(*arguments), lib=library)
    torch.library.register_fake(
        "nki_hf::attention_with_statistics", lambda *arguments: loaded().fake_statistics(*arguments), lib=library
    )
    for name in ("nki_hf::attention", "nki_hf::attention_with_statistics"):
        torch.library.register_autograd(
            name, lambda ctx, *grads: loaded().backward(ctx, *grads), setup_context=save, lib=library
        )
    name = "nki_hf::attention_backward"
    library.impl("attention_backward", lambda *arguments: loaded().attention_backward(*arguments), "CompositeExplicitAutograd")
    torch.library.register_fake(name, lambda *arguments: loaded().fake_backward(*arguments), lib=library)
    torch.library.register_autograd(name, lambda ctx, *grads: loaded().second(ctx, *grads), lib=library)
    code.library, code.schema = library, SCHEMAS  # the op lives as long as its library
