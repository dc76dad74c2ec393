"""The support table of the documentation, made from the rules that calls meet. `nki_hf explain --support` prints it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from nki_hf.chips import CHIPS
from nki_hf.dispatch import decide
from nki_hf.errors import require
from nki_hf.problem import Mask, Problem

__all__ = ["support_table"]

_BASE = {
    "batch": 1,
    "num_heads_q": 8,
    "num_heads_kv": 2,
    "seqlen_q": 1024,
    "seqlen_kv": 1024,
    "head_dim": 128,
    "head_dim_v": 128,
    "mask": Mask(ahead=1),
}

_GRADIENTS = "gradients of any of these, head_dim up to 256"

_CASES: tuple[tuple[str, dict[str, object]], ...] = (
    ("bfloat16, causal, grouped heads, head_dim 128", {}),
    ("float16", {"dtype": "float16"}),
    ("float32", {"dtype": "float32"}),
    ("float64", {"dtype": "float64"}),
    ("int32", {"dtype": "int32"}),
    ("float8_e4m3fn", {"dtype": "float8_e4m3fn"}),
    ("different dtypes of q, k, v", {"dtypes": ("float32", "float32", "bfloat16")}),
    ("one kv head", {"num_heads_kv": 1}),
    ("one kv head per query head", {"num_heads_kv": 8}),
    ("head_dim 1", {"head_dim": 1, "head_dim_v": 1}),
    ("head_dim 72", {"head_dim": 72, "head_dim_v": 72}),
    ("head_dim 192, head_dim_v 128", {"head_dim": 192}),
    ("head_dim 256", {"head_dim": 256, "head_dim_v": 256}),
    ("head_dim 257", {"head_dim": 257, "head_dim_v": 257}),
    ("head_dim 513", {"head_dim": 513, "head_dim_v": 513}),
    ("1 query row (decode)", {"seqlen_q": 1, "mask": Mask()}),
    ("more queries than keys", {"seqlen_q": 2000, "mask": Mask(ahead=1, q_offset=-976)}),
    ("131,072 keys", {"seqlen_kv": 131072, "mask": Mask(ahead=1, q_offset=130048)}),
    ("no mask", {"mask": Mask()}),
    ("sliding window", {"mask": Mask(ahead=1, window=128)}),
    ("window in both directions", {"mask": Mask(ahead=64, window=64)}),
    ("run-time bounds: padding, packed sequences, chunks, image blocks", {"mask": Mask(ahead=1, runtime_bounds=True)}),
    ("dense boolean mask", {"mask": Mask(bias="boolean", bias_batch=True, bias_rows=True)}),
    ("additive mask or position bias per head", {"mask": Mask(bias="additive", bias_heads=True, bias_rows=True)}),
    ("softcap", {"softcap": 50.0}),
    ("attention sinks", {"sink": True}),
    ("softmax scale of the model's own", {"softmax_scale": 0.3}),
    (_GRADIENTS, {}),
    ("no queries or no keys", {"seqlen_kv": 0}),
)


def support_table() -> str:
    """The page as Markdown.

    Raises:
      BackendUnavailable: torch or transformers is missing.
    """
    require("nki_hf explain --support", "hf", "torch", "transformers")
    from nki_hf.adapters.transformers import HARMLESS, HONOURED

    parts = [
        "# What runs where",
        "Made by `nki_hf explain --support` from the rules that every call meets; a test holds it to them. "
        "A call that no kernel takes runs torch, is counted in `nki_hf.explain()` and warned about once per reason; with "
        "`NKI_HF_STRICT=1` or `nki_hf.configure(strict=True)` it raises `UnsupportedProblem`.",
        "## Calls",
        _table(("call", *CHIPS), (_row(name, changes) for name, changes in _CASES)),
        "Also torch on every chip: dropout above 0 in training, attention weights asked for (`output_attentions`), tensor "
        "subclasses, devices other than cpu, neuron and xla, and context parallelism (which replaces torch's "
        "`scaled_dot_product_attention`; a kernel would see one shard only). Continuous batching takes a name of its own: "
        "docs/serving.md. The fallback computes q, k and v of different dtypes in the dtype that torch promotes them to, "
        "integers and 8-bit floats in float32, and returns q's dtype; where q holds integers it returns the dtype of the "
        "computation, since averages are no integers. Complex, bool and packed tensors are refused, strict or not.",
        "Dropout needs an instruction that the documented ones lack: random numbers that follow from a seed and an element's "
        "position alone. `nisa.rng`, `nisa.rand2` and `nisa.dropout` advance a state per partition, and the backward pass lays "
        "the scores out in another order than the forward pass, so it could not drop the same weights again.",
        "Derivatives: `backward()` and `torch.autograd.grad` follow a kernel. The transforms of `torch.func` (`grad`, `jvp`, "
        "`vmap`, `hessian`, ...) and forward-mode AD run torch, counted like any fallback. A gradient of a gradient "
        "(`create_graph=True`, as gradient penalties use) cannot be foreseen in the forward, so it raises `UnsupportedProblem` "
        'when it is taken: use `attn_implementation="eager"` for such a model, as sdpa has none on the CPU either.',
        "## Keyword arguments of Transformers' attention functions",
        _table(("argument", "what becomes of it"), ((f"`{name}`", text) for name, text in HONOURED.items())),
        "Accepted and ignored, because they do not concern the attention: "
        + f"the {len(HARMLESS)} names that models of Transformers 4.57 and 5.24 pass along and that no attention function "
        "there reads (`nki_hf/adapters/model_arguments.py`, made by `python tools/model_arguments.py --write`). Head masks "
        "(`head_mask`), which multiply the weights, are refused, strict or not. Any other argument that is not None sends the "
        "call to torch and is named.",
        "## Masks",
        _table(("what arrives", "what the kernel gets"), _MASKS),
        "## Known differences from eager",
        "- A query row that sees no key gives zeros here, and in torch's sdpa where the mask is bool or -inf; eager, and sdpa "
        "with a float mask of finfo.min, give the mean of all values, and so does a call here whose mask of finfo.min cannot "
        "be read (compiling, exporting, under vmap). It shows in "
        "the rows of padding only, except under left padding in `blt` and `musicgen`, whose later layers read such rows. "
        "In training with left padding the last row of padding predicts the first real token, so with labels of -100 at the "
        "padding alone it is part of the loss: loss and gradients are those of sdpa there, not of eager. Set the label of the "
        "first real token to -100 as well, and they are those of eager too.\n"
        "- Hidden keys and values must be finite, as in eager and sdpa: a weight of 0 times inf or NaN is NaN. "
        "`nki_hf.flash_attn.flash_attn_with_kvcache` clears unfilled slots itself.\n"
        "- `grounding_dino`, `mm_grounding_dino`, `nemotron3_5_asr`, `nemotron_asr_streaming` and `seamless_m4t_v2` differ "
        "from eager as they do under torch's sdpa.\n"
        "- Models whose attention never asks Transformers for an implementation (bloom, mpt, xglm, ...) keep their own; "
        "`nki_hf.apply(model)` lists such parts.\n"
        "- Some constructors refuse any name that Transformers does not ship (sam, git, ...): build them with "
        '`attn_implementation="eager"`, then call `nki_hf.apply(model)`. The falcon family (falcon, gpt_neo, bark, '
        "data2vec_vision, superglue) looks the name up in a table of its own and raises `KeyError: 'nki'`: these models run "
        "with their own attention only.\n"
        "- Models that users write are run as sdpa would run them where that can be shown: every class says `_supports_sdpa` "
        "and every attention in them asks Transformers for its function. All others (a class that says nothing, one whose "
        "source or configuration is not known, an attention exchanged after building) get eager's float masks, and no mask "
        "hides nothing, as in eager: right, but without the causal band that spares a kernel half of its tiles. "
        "`is_causal=True` without a mask is refused for them, because eager ignores it.\n"
        "- Packing with TRL (`packing=True` or `padding_free=True` in SFTConfig, or Transformers' DataCollatorWithFlattening) "
        "works: position_ids that start again, or cu_seq_lens, keep the sequences apart. With a cache or a mask of ones "
        "position_ids alone do not (nor in eager): pass `use_cache=False`, or cu_seq_lens.\n"
        "- A process that unpickles a model (a data loader's worker, multiprocessing, joblib, Ray) knows the name only if it "
        "imports nki_hf itself; without `import nki_hf` there Transformers raises KeyError when the model is called. Put the "
        "import into the "
        "module that defines the worker's function.",
    ]
    return "\n\n".join(parts) + "\n"


_MASKS = (
    ("None, causal layer", "the causal band; the last query row sees the last key"),
    ("None, other layer", "no mask"),
    ("bool, every row one run of keys, all on one band", "the band: known when the kernel is built, tiles outside are skipped"),
    ("bool, every row one run of keys", "int32 bounds per row, inside the causal band or window where all rows lie in one"),
    ("bool with holes", "the mask itself, one byte per element"),
    ("float of zeros and finfo.min or -inf", "the same as the bool mask"),
    ("other float", "an additive bias in float32; a row that is -inf everywhere sees no key"),
    ("integer", "an additive bias, as in eager: 0 and 1 do not hide anything; pass bool"),
    ("any mask while compiling, exporting or under vmap", "the mask itself: its values cannot be read there"),
)


def _row(name: str, changes: dict[str, object]) -> tuple[str, ...]:
    problem = Problem(**{**_BASE, **changes})  # type: ignore[arg-type]
    cells = []
    for chip in CHIPS:
        decision = decide(problem, backend="simulator", chip=chip, kind="backward" if name == _GRADIENTS else "forward")
        # Those of the first kernel, which takes the widest range of calls: the others' would only repeat what they are for.
        nearest = [reason for reason in decision.rejected if reason.kernel == decision.rejected[0].kernel]
        why = "; ".join(f"{reason.field} {reason.limit}" for reason in nearest)
        cells.append(f"torch: {why}" if decision.fallback else f"`{decision.kernel}`")
    return (name, *cells)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
