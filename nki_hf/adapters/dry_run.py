"""A model's attention calls without the model's work: built from its configuration on torch's meta device, then recorded."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AttentionInterface, AttentionMaskInterface

from nki_hf.adapters import mask_function
from nki_hf.adapters.apply import part_row
from nki_hf.adapters.call_log import CallLogRow
from nki_hf.adapters.decision import Where, decide_call
from nki_hf.adapters.model_source import loading_options, refused_code
from nki_hf.adapters.transformers import call_of, layer_name

__all__ = ["dry_run"]

_NAME = "nki_dry_run"
_LARGEST = 2**31 - 1
"""What a size may be: tensors are indexed with 32 bits."""


def dry_run(
    model: str, *, seqlen: int, batch: int, chip: str, dtype: str, padded: bool, decode: bool, trust_remote_code: bool = False
) -> list[CallLogRow]:
    """The log of calls of a prefill and one decode step (see `tools.explain.run` for the arguments and errors)."""
    _check_sizes(seqlen=seqlen, batch=batch)
    built = _build(model, dtype, trust_remote_code)
    padding = None
    if padded:
        padding = torch.ones((batch, seqlen + 1), dtype=torch.bool)
        padding[0, : seqlen // 2] = False
    rows: dict[tuple[Any, ...], CallLogRow] = {}
    cache = transformers.DynamicCache(config=built.config) if decode and built.can_generate() else None
    # Newer versions call it cache and warn about the other name.
    cache_name = "cache" if "cache" in inspect.signature(built.forward).parameters else "past_key_values"
    with _recording(rows, chip) as seen, torch.no_grad():
        for start, stop in ((0, seqlen), (seqlen, seqlen + 1)) if cache is not None else ((0, seqlen),):
            seen["padding"] = None if padding is None else padding[:, :stop]
            options: dict[str, Any] = {"use_cache": True, cache_name: cache} if cache is not None else {}
            mask = torch.ones((batch, stop), dtype=torch.long, device="meta") if padded else None
            ids = torch.zeros((batch, stop - start), dtype=torch.long, device="meta")
            try:
                built(input_ids=ids, attention_mask=mask, **options)
            except Exception as error:  # whatever the model's own code raises
                raise ValueError(
                    f"model={model!r} cannot be run without values ({type(error).__name__}: {error}). "
                    "Run it once with attn_implementation='nki' and print nki_hf.explain()."
                ) from error
    if not rows:
        raise ValueError(f"model={model!r} has no attention that could reach a kernel: {_why_nothing_ran(built)}")
    return list(rows.values())


def _why_nothing_ran(built: Any) -> str:
    """What `nki_hf.apply` would say of the model, for one whose attention never asked for an implementation."""
    parts = [(name, part) for name, part in built.named_modules() if isinstance(part, transformers.PreTrainedModel)]
    notes = dict.fromkeys(
        f"{row.model_class} is {row.status}, {row.note}."
        for row in (part_row(name, part, _NAME) for name, part in parts)
        if row.status != "routed"
    )
    return " ".join(notes) or "its layers made no attention call. Print the report of nki_hf.apply(model)."


def _check_sizes(**sizes: int) -> None:
    for name, size in sizes.items():
        if not 1 <= size <= _LARGEST:
            raise ValueError(f"{name}={size} is not a size: it is 1 or more, and at most {_LARGEST:,}.")


def _build(model: str, dtype: str, trust_remote_code: bool) -> Any:
    if dtype not in ("bfloat16", "float16", "float32"):
        raise ValueError(f"dtype={dtype!r} is not known: it is bfloat16, float16 or float32.")
    known = model in transformers.CONFIG_MAPPING and not Path(model).exists()
    options = {} if known else loading_options(model, trust_remote_code=trust_remote_code)
    try:
        config = transformers.CONFIG_MAPPING[model]() if known else transformers.AutoConfig.from_pretrained(model, **options)
        auto = transformers.AutoModelForCausalLM
        if type(config) not in auto._model_mapping and auto.__name__ not in (getattr(config, "auto_map", None) or {}):
            auto = transformers.AutoModel
        with torch.device("meta"):
            built = auto.from_config(
                config, attn_implementation="eager", dtype=getattr(torch, dtype), trust_remote_code=trust_remote_code
            ).eval()
    except Exception as error:  # a configuration may hold anything, and a model's own code raise anything
        if "trust_remote_code" in str(error):
            raise refused_code(model) from error
        raise ValueError(
            f"model={model!r} cannot be built from its configuration ({type(error).__name__}: {error})."
        ) from error
    AttentionInterface.register(_NAME, _unused)
    AttentionMaskInterface.register(_NAME, _unused)
    built.set_attn_implementation(_NAME)
    return built


@contextmanager
def _recording(rows: dict[tuple[Any, ...], CallLogRow], chip: str) -> Iterator[dict[str, Any]]:
    """Put a recorder in the place of the attention and real masks in the place of meta ones; yields where the padding goes."""
    seen: dict[str, Any] = {"padding": None}

    def masks(**kwargs: Any) -> torch.Tensor | None:
        return mask_function.nki_mask(**{**kwargs, "device": "cpu", "attention_mask": seen["padding"]})

    def attention(
        module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attention_mask: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, None]:
        call = call_of(module, query, key, value, attention_mask, kwargs)
        decision = decide_call(call, Where("simulator", chip))
        key_of = (layer_name(module), decision.problem, decision.kernel)
        before = rows.get(key_of)
        calls = 1 if before is None else before.calls + 1
        # The problem is part of the key: all calls of a row have one size.
        lengths_q, lengths_kv = (decision.problem.seqlen_q,) * 2, (decision.problem.seqlen_kv,) * 2
        rows[key_of] = CallLogRow(
            layer=layer_name(module), first=decision, seqlens_q=lengths_q, seqlens_kv=lengths_kv, calls=calls
        )
        return query.new_empty((query.shape[0], query.shape[2], query.shape[1], value.shape[3])), None

    AttentionInterface.register(_NAME, attention)
    AttentionMaskInterface.register(_NAME, masks)
    try:
        yield seen
    finally:
        AttentionInterface.register(_NAME, _unused)
        AttentionMaskInterface.register(_NAME, _unused)


def _unused(*_: Any, **__: Any) -> Any:
    raise RuntimeError(f"attn_implementation={_NAME!r} runs nothing: it only records. Use attn_implementation='nki'.")
