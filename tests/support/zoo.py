"""Tiny random models: how they are built, the inputs they take, and what is compared between two implementations."""

import copy
import inspect
import warnings
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from shrink import shrink
from transformers import CONFIG_MAPPING
from zoo_list import ARCHITECTURES, Architecture

__all__ = ["ARCHITECTURES", "MODES", "TOLERANCE", "Architecture", "Outcome", "build", "deviation", "run_mode", "verdict"]

TOLERANCE = 1e-4
"""Of the largest value, in float32; a feature that is left out costs more (see `model_figures.py` for the controls)."""

_SCORES = set(
    "q_proj k_proj query key q k q_lin k_lin qkv qkv_proj c_attn query_key_value Wqkv in_proj_weight q_b_proj kv_b_proj".split()
)
"""Names of the layers whose products are the scores."""
_BATCH, _LENGTH, _PADDING = 2, 7, 2


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What one mode gave, comparable between implementations: tensors and tokens by name."""

    tensors: dict[str, torch.Tensor]
    tokens: torch.Tensor | None = None


MODES = {
    "decoder": ("plain", "left", "right", "dynamic", "static", "train"),
    "encoder": ("plain", "left", "right", "train"),
    "seq2seq": ("plain", "left", "right", "dynamic", "static", "train"),
    "vision": ("plain", "train"),
    "audio": ("plain", "train"),
    "audio2text": ("plain", "dynamic", "static", "train"),
    "multimodal": ("plain", "left", "right", "dynamic", "static", "train"),
    "two towers": ("plain", "left", "right", "train"),
}
"""Modes by kind of architecture; `left`, `right`: side of the padding; `dynamic`, `static`: cache of a 4-token generation."""


def build(architecture: Architecture, dtype: torch.dtype = torch.float32, scale: float = 1.0) -> torch.nn.Module:
    """A model with fixed weights that are large enough for every option to show in its output.

    Args:
      architecture: what to build.
      dtype: of the weights.
      scale: multiplies the weights of query and key projections: softmaxes get sharp, so that no mask can hide in a flat one.
    """
    config = shrink(CONFIG_MAPPING[architecture.name], **copy.deepcopy(architecture.changes))
    config._attn_implementation = "eager"
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    model = getattr(transformers, architecture.model)(config).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            noise = torch.randn(weight.shape, generator=generator)
            if weight.dim() > 1:
                weight.copy_(noise * min(0.3, 1.5 * max(1, weight[0].numel()) ** -0.5))
                if any(part in _SCORES for part in name.split(".")):
                    weight.mul_(scale)
            elif "sink" in name:
                weight.copy_(noise)
            else:
                weight.add_(0.05 * noise)
    if getattr(model, "generation_config", None) is not None:
        model.generation_config.eos_token_id = None
        model.generation_config.pad_token_id = 0
    return model.to(dtype)


def deviation(found: Outcome, expected: Outcome) -> float:
    """Largest absolute difference, each tensor in units of its largest value (at least 1e-3 of the largest of all)."""
    largest = max(float(each.abs().max()) for each in expected.tensors.values() if each.numel())
    worst = 0.0
    for name, tensor in expected.tensors.items():
        if not tensor.numel():
            continue
        scale = max(float(tensor.abs().max()), 1e-3 * largest)
        difference = float((found.tensors[name].double() - tensor.double()).abs().max())
        worst = max(worst, difference / scale) if difference == difference else float("nan")
    return worst


def equal(found: Outcome, expected: Outcome, architecture: Architecture, model: torch.nn.Module, mode: str) -> bool:
    """True if `found` is eager's outcome but for rounding.

    In float32 within `TOLERANCE` of it. Sharp softmaxes and choices of experts can enlarge a rounding beyond that, and
    narrower dtypes round more: then within twice the larger of two errors, both from eager in float64: of `expected`, and
    of float64 itself on weights that are moved by one rounding. Tokens must be the same.

    Args:
      found: what is judged.
      expected: eager's outcome in the model's dtype.
      architecture: of the model.
      model: what gave both.
      mode: of both.
    """
    if expected.tokens is not None and not torch.equal(found.tokens, expected.tokens):
        return False
    dtype = next(model.parameters()).dtype
    if dtype == torch.float32 and deviation(found, expected) <= TOLERANCE:
        return True
    exact = copy.deepcopy(model).double()
    reference = run_mode(architecture, exact, "eager", mode)
    errors = [deviation(expected, reference)]
    generator = torch.Generator().manual_seed(2)
    for _ in range(3):
        moved = copy.deepcopy(exact)
        with torch.no_grad():
            for weight in moved.parameters():
                weight.mul_(1 + torch.finfo(dtype).eps * (2 * torch.rand(weight.shape, generator=generator) - 1))
        errors.append(deviation(run_mode(architecture, moved, "eager", mode), reference))
    return deviation(found, reference) <= 2 * max(errors)


def verdict(found: Outcome, expected: Outcome, architecture: Architecture, model: torch.nn.Module, mode: str) -> str:
    """`equal` to eager; `as sdpa` where Transformers' own sdpa differs from eager and `found` is equal to it; `wrong`."""
    if equal(found, expected, architecture, model, mode):
        return "equal"
    as_sdpa = run_mode(architecture, model, "sdpa", mode)
    return "as sdpa" if equal(found, as_sdpa, architecture, model, mode) else "wrong"


def run_mode(architecture: Architecture, model: torch.nn.Module, implementation: str, mode: str) -> Outcome:
    """One mode under one implementation."""
    model.set_attn_implementation(implementation)
    inputs, rows = _inputs(architecture, model, mode)
    if mode in ("dynamic", "static"):
        return _generate(model, inputs, mode)
    if mode == "train":
        return _train(model, inputs)
    with torch.no_grad():
        out = _first(model(**inputs))
    return Outcome(tensors={"output": out[rows] if rows is not None and rows.shape == out.shape[:2] else out})


def _generate(model: Any, inputs: dict[str, torch.Tensor], mode: str) -> Outcome:
    options: dict[str, Any] = {"max_new_tokens": 4, "min_new_tokens": 4, "do_sample": False}
    if mode == "static":
        options["cache_implementation"] = "static"
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        found = model.generate(**inputs, **options, output_scores=True, return_dict_in_generate=True)
    scores = torch.stack(found.scores)
    return Outcome(tensors={"scores": scores[scores.isfinite()]}, tokens=found.sequences[:, -4:])


def _train(model: torch.nn.Module, inputs: dict[str, torch.Tensor]) -> Outcome:
    model.train()
    model.zero_grad()
    torch.manual_seed(0)  # some models draw positions in training
    out = _first(model(**inputs)).float()
    weight = torch.randn(out.shape, generator=torch.Generator().manual_seed(3))
    (out * weight).mean().backward()
    model.eval()
    grads = {name: each.grad.clone() for name, each in model.named_parameters() if each.grad is not None}
    return Outcome(tensors={"output": out.detach(), **grads})


def _first(output: Any) -> torch.Tensor:
    for name in ("logits", "last_hidden_state", "logits_per_image", "pooler_output", "pred_boxes"):
        found = getattr(output, name, None)
        if isinstance(found, torch.Tensor):
            return found
    return next(each for each in output.values() if isinstance(each, torch.Tensor))


def _inputs(
    architecture: Architecture, model: torch.nn.Module, mode: str
) -> tuple[dict[str, torch.Tensor], torch.Tensor | None]:
    generator = torch.Generator().manual_seed(1)
    dtype = next(model.parameters()).dtype
    inputs: dict[str, torch.Tensor] = {
        name: torch.randn(shape, generator=generator).to(dtype) for name, shape in architecture.inputs.items()
    }
    kind = architecture.kind
    rows = None
    if kind in ("decoder", "encoder", "seq2seq", "multimodal", "two towers"):
        images = 4 if kind == "multimodal" else 0
        length = _LENGTH + images + _PADDING * bool(images)
        ids = torch.randint(3, 79, (_BATCH, length), generator=generator)
        if kind == "two towers":
            ids[:, -1] = 2  # the end token, whose state is the text's
        mask = torch.ones_like(ids)
        if mode in ("left", "dynamic", "static"):
            mask[0, :_PADDING] = 0
        if mode == "right":
            mask[0, -_PADDING:] = 0
        if images:
            ids[:, _PADDING : _PADDING + images] = 80
        ids = ids.masked_fill(mask == 0, 0)
        inputs["input_ids"] = ids
        rows = mask.bool()
        if mode in ("left", "right", "dynamic", "static"):
            inputs["attention_mask"] = mask
        if (
            images
            and "token_type_ids" in inspect.signature(model.forward).parameters
            and mode in ("train", "plain", "left", "right")
        ):
            inputs["token_type_ids"] = (ids == 80).long()
    if kind in ("seq2seq", "audio2text") and mode in ("plain", "left", "right", "train"):
        inputs["decoder_input_ids"] = torch.randint(3, 79, (_BATCH, 5), generator=generator)
        rows = None
    return inputs, rows
