"""Several processes and devices: tensor parallelism over two of them, device maps, sharded training, accelerate's launcher."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from tiny import build, logits, tiny_qwen3, token_ids, worst
from transformers import (
    AutoModelForCausalLM,
    GptOssConfig,
    GptOssForCausalLM,
    GraniteSWAConfig,
    GraniteSWAForCausalLM,
)
from transformers.models.gpt_oss.modeling_gpt_oss import eager_attention_forward

import nki_hf
from nki_hf.adapters.transformers import nki_attention

_ROOT = Path(__file__).parents[2]
_START = f"import sys; sys.path[:0] = [{str(_ROOT)!r}, {str(_ROOT / 'tests/support')!r}, {str(Path(__file__).parent)!r}]\n"


def _launch(launcher, script, *arguments):
    """Two processes of a script; what rank 0 printed last, as JSON."""
    command = [sys.executable, "-m", *launcher, str(script), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, cwd=_ROOT, env=_environment(), check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads([line for line in done.stdout.splitlines() if line.startswith("{")][-1])


def _environment():
    return {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "NKI_HF_STRICT": "1", "GLOO_SOCKET_IFNAME": "lo"}


def _free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def _torchrun(ranks=2):
    return ["torch.distributed.run", f"--nproc-per-node={ranks}", "--master-addr=127.0.0.1", f"--master-port={_free_port()}"]


_TENSOR_PARALLEL = """
import json, torch, torch.distributed as dist, nki_hf
from transformers import AutoModelForCausalLM, DistributedConfig
from tiny import token_ids
from nki_hf.adapters import call_log
plan = DistributedConfig(tp_plan=json.loads(sys.argv[3]))
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], distributed_config=plan, attn_implementation="nki").eval()
ids = token_ids(2, 9)
mask = torch.ones_like(ids)
mask[0, :3] = 0
with torch.no_grad():
    out = model(ids, attention_mask=mask, use_cache=False).logits
    tokens = model.generate(ids, attention_mask=mask, max_new_tokens=4, do_sample=False, pad_token_id=0)
if hasattr(out, "full_tensor"):
    out = out.full_tensor()
decisions = [row.first for row in call_log.rows()]
sizes = {(each.problem.num_heads_q, each.problem.num_heads_kv, each.problem.sink) for each in decisions}
if dist.get_rank() == 0:
    torch.save((out, tokens), sys.argv[2])
    kernel = all(each.backend == "simulator" and not each.fallback for each in decisions)
    print(json.dumps({"ranks": dist.get_world_size(), "sizes": sorted(sizes), "kernel": kernel}))
dist.destroy_process_group()
"""
_SHARDED_ATTENTION = {
    "model.layers.*.self_attn.q_proj": "colwise",
    "model.layers.*.self_attn.k_proj": "colwise",
    "model.layers.*.self_attn.v_proj": "colwise",
    "model.layers.*.self_attn.o_proj": "rowwise",
    "model.layers.*.self_attn.sinks": "colwise",
    "model.layers.*.self_attn": "local_params",
}
"""gpt_oss's own plan shards no attention; its experts stay whole here."""


def _granite_swa():
    # Its own plan shards the sinks with their heads.
    sizes = tiny_qwen3().config.to_dict()
    names = ("vocab_size", "hidden_size", "num_attention_heads", "num_key_value_heads", "intermediate_size")
    kinds = ["sliding_attention", "full_attention"]
    config = GraniteSWAConfig(**{name: sizes[name] for name in names}, num_hidden_layers=2, sliding_window=4, layer_types=kinds)
    return _with_sinks(build(GraniteSWAForCausalLM, config))


def _gpt_oss():
    sizes = tiny_qwen3().config.to_dict()
    names = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim")
    config = {name: sizes[name] for name in (*names, "intermediate_size")}
    return _with_sinks(
        build(GptOssForCausalLM, GptOssConfig(**config, sliding_window=4, num_local_experts=2, num_experts_per_tok=1))
    )


def _with_sinks(model):
    """Sinks that differ from head to head and are large enough that a wrong share of them shows."""
    for layer, block in enumerate(model.model.layers):
        block.self_attn.sinks.data = torch.tensor([2.0, -1.0, 0.5, 3.0]) - layer
    return model


_TENSOR_PARALLEL_CASES = [
    pytest.param(tiny_qwen3, "auto", False, id="qwen3", marks=pytest.mark.slow),
    pytest.param(_granite_swa, "auto", True, id="granite_swa, sinks by its own plan"),
    pytest.param(_gpt_oss, _SHARDED_ATTENTION, True, id="gpt_oss, attention and sinks", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("build_model", "plan", "sinks"), _TENSOR_PARALLEL_CASES)
def test_tensor_parallel_over_two_processes_equals_one(build_model, plan, sinks, tmp_path):
    model = build_model()
    model.save_pretrained(tmp_path / "model")
    script = tmp_path / "rank.py"
    script.write_text(_START + _TENSOR_PARALLEL)
    found = _launch(_torchrun(), script, tmp_path / "model", tmp_path / "out.pt", json.dumps(plan))
    assert found == {"ranks": 2, "sizes": [[2, 1, sinks]], "kernel": True}
    ids = token_ids(2, 9)
    mask = torch.ones_like(ids)
    mask[0, :3] = 0
    expected = logits(model, "eager", ids, attention_mask=mask, use_cache=False)
    tokens = model.generate(ids, attention_mask=mask, max_new_tokens=4, do_sample=False, pad_token_id=0)
    out, found_tokens = torch.load(tmp_path / "out.pt")
    assert worst(out, expected, mask) < 2e-6
    assert torch.equal(found_tokens, tokens)


def test_sinks_shared_out_with_their_heads_equal_the_whole():
    draw = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, heads, 9, 16, generator=draw) for heads in (4, 2, 2))
    sinks = torch.randn(4, generator=draw)
    mask = torch.full((9, 9), -torch.inf).triu(1)[None, None]
    layer = SimpleNamespace(num_key_value_groups=2, sinks=sinks, training=False, is_causal=True)
    expected, _ = eager_attention_forward(layer, q, k, v, mask, scaling=0.25, dropout=0.0)
    parts = []
    for rank in range(2):
        heads, kv_heads = slice(2 * rank, 2 * rank + 2), slice(rank, rank + 1)
        with nki_hf.using(strict=True):
            local = (q[:, heads], k[:, kv_heads], v[:, kv_heads])
            parts.append(nki_attention(layer, *local, None, scaling=0.25, s_aux=sinks[heads])[0])
    assert worst(torch.cat(parts, 2), expected) < 2e-6


def kernels_ran():
    """True if kernels, whichever dispatch prefers, ran every call and its gradients."""
    rows = nki_hf.explain().rows
    phases = {row.phase for row in rows if row.first.plan is not None}
    return phases == {"prefill", "backward"} and all(row.first.plan is not None for row in rows)


_SHARDED = """
import copy, json, torch, torch.distributed as dist, nki_hf
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from test_parallel_models import _MODELS, kernels_ran
from tiny import token_ids
dist.init_process_group("gloo")
ranks = dist.get_world_size()
mesh = init_device_mesh("cpu", (ranks,))
plain = _MODELS[sys.argv[1]]().train()
model = copy.deepcopy(plain)
model.set_attn_implementation("nki")
for layer in model.model.layers:
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
ids = token_ids(2 * ranks, 9)
mine = ids[2 * dist.get_rank() :][:2]
plain(ids, labels=ids, use_cache=False).loss.backward()
model(mine, labels=mine, use_cache=False).loss.backward()
worst = max(float((a.grad.full_tensor() - b.grad).abs().max()) for a, b in zip(model.parameters(), plain.parameters()))
if dist.get_rank() == 0:
    print(json.dumps({"worst": worst, "kernels": kernels_ran()}))
dist.destroy_process_group()
"""


_MODELS = {"qwen3": tiny_qwen3, "gpt_oss": _gpt_oss}


@pytest.mark.parametrize(
    ("model", "ranks"),
    [
        pytest.param("gpt_oss", 1, id="gpt_oss, whose sinks are given back after use"),
        pytest.param("qwen3", 2, marks=pytest.mark.slow),
        pytest.param("gpt_oss", 2, marks=pytest.mark.slow),
    ],
)
def test_fully_sharded_training_gives_the_gradients_of_one_process(model, ranks, tmp_path):
    script = tmp_path / "rank.py"
    script.write_text(_START + _SHARDED)
    found = _launch(_torchrun(ranks), script, model)
    assert found["kernels"]
    assert found["worst"] < 2e-6


_ACCELERATE = """
import copy, json, torch, nki_hf
from accelerate import Accelerator
from test_parallel_models import kernels_ran
from tiny import tiny_qwen3, token_ids
accelerator = Accelerator(cpu=True)
plain = tiny_qwen3().train()
model = copy.deepcopy(plain)
model.set_attn_implementation("nki")
model = accelerator.prepare(model)
ids = token_ids(4, 9)
mine = ids[2 * accelerator.process_index :][:2]
accelerator.backward(model(mine, labels=mine, use_cache=False).loss)
plain(ids, labels=ids, use_cache=False).loss.backward()
inner = accelerator.unwrap_model(model)
worst = max(float((a.grad - b.grad).abs().max()) for a, b in zip(inner.parameters(), plain.parameters()))
if accelerator.is_main_process:
    print(json.dumps({"ranks": accelerator.num_processes, "worst": worst, "kernels": kernels_ran()}))
accelerator.end_training()
"""


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
def test_accelerate_trains_as_one_process_does(ranks, tmp_path):
    script = tmp_path / "rank.py"
    script.write_text(_START + _ACCELERATE.replace("token_ids(4, 9)", f"token_ids({2 * ranks}, 9)"))
    # accelerate's own launcher starts several processes on CPUs through MPI only
    launcher = ["accelerate.commands.launch", "--cpu", "--num_processes=1", "--num_machines=1", "--mixed_precision=no"]
    found = _launch(_torchrun() if ranks == 2 else [*launcher, "--dynamo_backend=no"], script)
    assert found["ranks"] == ranks
    assert found["kernels"]
    assert found["worst"] < 2e-6


def test_a_device_map_loads_and_gives_eagers_numbers(tmp_path):
    model, ids = tiny_qwen3(), token_ids(2, 9)
    model.save_pretrained(tmp_path)
    mapped = AutoModelForCausalLM.from_pretrained(tmp_path, device_map={"": "cpu"}, attn_implementation="nki")
    with nki_hf.using(strict=True), torch.no_grad():
        got = mapped(ids).logits
    assert worst(got, logits(model, "eager", ids)) < 2e-6


def test_layers_off_loaded_to_disk_run_through_the_kernels(tmp_path):
    model, ids = tiny_qwen3(), token_ids(2, 9)
    model.save_pretrained(tmp_path / "model")
    places = {"model.embed_tokens": "cpu", "model.layers.0": "cpu", "model.layers.1": "disk", "model.norm": "cpu"}
    places |= {"model.rotary_emb": "cpu", "lm_head": "cpu"}
    mapped = AutoModelForCausalLM.from_pretrained(
        tmp_path / "model", device_map=places, offload_folder=tmp_path / "weights", attn_implementation="nki"
    )
    with nki_hf.using(strict=True), torch.no_grad():
        got = mapped(ids).logits
    assert worst(got, logits(model, "eager", ids)) < 2e-6
