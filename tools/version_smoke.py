"""What works with the transformers and torch that are installed: a small set of models and ways, each against eager.

python tools/version_smoke.py [part of a case's name ...]   prints one line per case; exit code 1 if one of them is not ok
python tools/version_smoke.py --page                        also writes this environment's column of docs/versions.md
"""

import importlib.metadata
import platform
import subprocess
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path

import torch
import transformers

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
sys.path.insert(0, str(Path(__file__).parents[1]))

from tiny import SIZES, build, logits, token_ids, worst

import nki_hf
from tools.page_block import block_in, with_block

ROOT = Path(__file__).parents[1]
TOLERANCE = 1e-4
"""Of the largest value that eager gives, in float32."""
_WINDOW = {"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]}
_DECODERS = {
    "qwen3": ("Qwen3Config", "Qwen3ForCausalLM", {}),
    "llama": ("LlamaConfig", "LlamaForCausalLM", {}),
    "gemma2": ("Gemma2Config", "Gemma2ForCausalLM", {**_WINDOW, "attn_logit_softcapping": 5.0, "query_pre_attn_scalar": 16}),
    "gemma3": ("Gemma3TextConfig", "Gemma3ForCausalLM", _WINDOW),
    "gpt_oss": ("GptOssConfig", "GptOssForCausalLM", {**_WINDOW, "num_local_experts": 2, "num_experts_per_tok": 1}),
}
"""Plain, grouped heads; window and softcap; window; window and sinks."""


@dataclass(frozen=True)
class Outcome:
    """`word`: ok, differs, not routed, fell back, or the name of an exception; `detail`: the figure or the message."""

    word: str
    detail: str


def _decoder(name):
    config, model, changes = _DECODERS[name]
    return build(getattr(transformers, model), getattr(transformers, config)(**SIZES, **changes))


def _mask(side):
    mask = torch.ones((2, 9), dtype=torch.long)
    mask[0, slice(0, 3) if side == "left" else slice(6, 9)] = 0
    return mask


def _relative(found, expected, rows=None):
    assert bool(torch.isfinite(expected).all())
    return worst(found, expected, rows) / max(float(expected.abs().max()), 1e-6)


def _prefill(model, side):
    ids, mask = token_ids(2, 9), _mask(side)
    expected = logits(model, "eager", ids, attention_mask=mask)
    return _relative(logits(model, "nki", ids, attention_mask=mask), expected, mask)


def _generate(model, **options):
    found = []
    for implementation in ("eager", "nki"):
        model.set_attn_implementation(implementation)
        options = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0, **options}
        found.append(model.generate(token_ids(2, 9), attention_mask=_mask("left"), **options))
    return float((found[0] != found[1]).sum())


def _training_step(model):
    ids, mask = token_ids(2, 9), _mask("right")
    gradients = []
    for implementation in ("eager", "nki"):
        model.train().set_attn_implementation(implementation)
        model.zero_grad()
        model(ids, attention_mask=mask, labels=ids.masked_fill(mask == 0, -100), use_cache=False).loss.backward()
        gradients.append([weight.grad.clone() for weight in model.parameters() if weight.grad is not None])
    return max(worst(a, b) for a, b in zip(*gradients, strict=True)) / max(float(a.abs().max()) for a in gradients[0])


def _compiled(model):
    ids, mask = token_ids(2, 9), _mask("left")
    expected = logits(model, "eager", ids, attention_mask=mask, use_cache=False)
    model.set_attn_implementation("nki")
    torch._dynamo.reset()
    nodes = []

    def backend(graph, _):
        nodes.extend(str(node.target) for node in graph.graph.nodes)
        return graph.forward

    with torch.no_grad():
        found = torch.compile(model, backend=backend, fullgraph=True)(ids, attention_mask=mask, use_cache=False).logits
    _assert_ops(nodes)
    return _relative(found, expected, mask)


def _assert_ops(nodes):
    # Calls of a graph are not counted: the graph itself shows them.
    assert sum("nki_hf.attention" in node for node in nodes) == SIZES["num_hidden_layers"], nodes


class _Logits(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, ids, mask):
        return self.model(ids, attention_mask=mask, use_cache=False).logits


def _exported(model):
    ids, mask = token_ids(2, 9), _mask("left")
    expected = logits(model, "eager", ids, attention_mask=mask, use_cache=False)
    model.set_attn_implementation("nki")
    with torch.no_grad():
        program = torch.export.export(_Logits(model), (ids, mask), strict=False)
        _assert_ops([str(node.target) for node in program.graph.nodes])
        return _relative(program.module()(ids, mask), expected, mask)


def _recorded_weights(model):
    ids, found = token_ids(2, 9), []
    model.set_attn_implementation("eager")
    with torch.no_grad():
        expected = model(ids, output_attentions=True).attentions
        model.set_attn_implementation("nki")
        with nki_hf.using(strict=False):  # eager returns the weights: a fallback on purpose
            found = model(ids, output_attentions=True).attentions
    assert len(found) == len(expected), f"{len(found)} layers of attentions, not {len(expected)}"
    return max(worst(a, b) for a, b in zip(found, expected, strict=True))


def _bert():
    sizes = {key: value for key, value in SIZES.items() if key not in ("head_dim", "num_key_value_heads")}
    model = build(transformers.BertModel, transformers.BertConfig(**sizes))
    ids, mask, found = token_ids(2, 9), _mask("right"), []
    for implementation in ("eager", "nki"):
        model.set_attn_implementation(implementation)
        with torch.no_grad():
            found.append(model(ids, attention_mask=mask).last_hidden_state)
    return _relative(found[1], found[0], mask)


def _t5():
    config = transformers.T5Config(
        vocab_size=64, d_model=32, d_kv=16, d_ff=64, num_layers=2, num_heads=4, decoder_start_token_id=0
    )
    model, ids = build(transformers.T5ForConditionalGeneration, config), token_ids(2, 9)
    inputs = {"attention_mask": _mask("right"), "decoder_input_ids": ids[:, :5]}
    expected = logits(model, "eager", ids, **inputs)
    # Its halves hold copies of the configuration, which Transformers' own switch misses in some versions.
    nki_hf.apply(model)
    with torch.no_grad():
        return _relative(model(ids, **inputs).logits, expected)


def _dry_run():
    from nki_hf.adapters.dry_run import dry_run

    rows = dry_run("qwen3", seqlen=16, batch=1, chip="trn2", dtype="bfloat16", padded=True, decode=True)
    assert {row.first.problem.seqlen_q for row in rows} == {16, 1}, rows
    assert not any(row.first.fallback for row in rows), rows
    return 0.0


_BOTH_TABLES = """
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS as attention
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS as masks
assert "nki" in attention and "nki" in masks
"""


def _registered(first):
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{first}\n{_BOTH_TABLES}"
    subprocess.run([sys.executable, "-W", "error::UserWarning:nki_hf", "-c", code], check=True, capture_output=True)
    return 0.0


_WAYS = {
    "right padding": lambda model: _prefill(model, "right"),
    "left padding": lambda model: _prefill(model, "left"),
    "generate, dynamic cache": _generate,
    "generate, static cache": lambda model: _generate(model, cache_implementation="static", disable_compile=True),
    "training step": _training_step,
}
CASES = {
    "nki_hf imported first": lambda: _registered("import nki_hf, transformers"),
    "transformers imported first": lambda: _registered("import transformers; transformers.PreTrainedModel; import nki_hf"),
    **{f"{name}: {way}": (lambda n=name, w=way: _WAYS[w](_decoder(n))) for name in _DECODERS for way in _WAYS},
    "qwen3: torch.compile, fullgraph": lambda: _compiled(_decoder("qwen3")),
    "gemma3: torch.compile, fullgraph": lambda: _compiled(_decoder("gemma3")),
    "qwen3: torch.export": lambda: _exported(_decoder("qwen3")),
    "qwen3: output_attentions": lambda: _recorded_weights(_decoder("qwen3")),
    "bert: encoder": _bert,
    "t5: position bias, cross attention": _t5,
    "nki_hf explain qwen3": _dry_run,
}
_UNCOUNTED = ("imported first", "torch.compile", "torch.export", "explain")


def outcome(case):
    """Run one case strictly (a fallback is an error) and say how it went."""
    nki_hf.explain(reset=True)
    try:
        with nki_hf.using(strict=True), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            difference = CASES[case]()
    except nki_hf.UnsupportedProblem as error:
        return Outcome("fell back", str(error))
    except Exception as error:  # whatever an old version raises is the answer
        if isinstance(error, subprocess.CalledProcessError):
            return Outcome(type(error).__name__, error.stderr.decode().strip().rpartition("\n")[2])
        return Outcome(type(error).__name__, str(error).strip().partition("\n")[0])
    if nki_hf.explain().calls == 0 and not any(part in case for part in _UNCOUNTED):
        return Outcome("not routed", "no call reached nki")
    return Outcome("ok" if difference <= TOLERANCE else "differs", f"{difference:.1e}")


def versions():
    """What identifies this environment in the page's first rows."""
    return {
        "transformers": transformers.__version__,
        "torch": torch.__version__.partition("+")[0],
        "numpy": importlib.metadata.version("numpy"),
        "python": f"{platform.python_version()}, {platform.machine()}",
    }


PAGE = ROOT / "docs" / "versions.md"


def columns(page):
    """The page's table as `{heading: {row: cell}}`; heading = transformers and torch."""
    lines = block_in(page, "versions").splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    rows = [row for row in rows if not set(row[0]) <= {"-"} or row[0] == ""]
    head = rows[0][1:] if rows else []
    return {name: {row[0]: row[i + 1] for row in rows[1:]} for i, name in enumerate(head)}


def _order(heading):
    return [[int(part) for part in word.split(".") if part.isdigit()] for word in heading.split(" / ")]


def with_column(page, heading, cells):
    """The page with one column added or replaced, columns in the order of versions."""
    table = {**columns(page), heading: cells}
    heads = sorted(table, key=_order)
    rows = ["numpy", "Python", *CASES]
    lines = [["transformers / torch", *heads], ["---"] * (len(heads) + 1)]
    lines += [[row, *(table[head].get(row, "-") for head in heads)] for row in rows]
    return with_block(page, "versions", "\n".join(f"| {' | '.join(line)} |" for line in lines))


def main(arguments):
    """Run the cases whose name holds one of the arguments (none: all); 0 if all are ok."""
    parts = [each for each in arguments if each != "--page"]
    if parts and not any(part in case for part in parts for case in CASES):
        print(f"{' '.join(parts)} is part of no case: {', '.join(CASES)}.", file=sys.stderr)
        return 2
    mine = versions()
    print(", ".join(f"{name} {number}" for name, number in mine.items()), flush=True)
    found = {}
    for case in CASES:
        if not parts or any(part in case for part in parts):
            found[case] = outcome(case)
            print(f"{case:<40} {found[case].word:<12} {found[case].detail}", flush=True)
    if "--page" in arguments:
        page, heading = PAGE.read_text(), f"{mine['transformers']} / {mine['torch']}"
        words = {case: one.word for case, one in found.items()}
        cells = {"numpy": mine["numpy"], "Python": mine["python"], **columns(page).get(heading, {}), **words}
        PAGE.write_text(with_column(page, heading, cells))
    return int(any(one.word != "ok" for one in found.values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
