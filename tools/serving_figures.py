"""Continuous batching with nki beside torch's own attention: tokens, programs, memory; many requests, some of them cancelled.

    PYTHONPATH=. python tools/serving_figures.py                       # 32 requests of 1 to 2,000 tokens, five kinds of models
    PYTHONPATH=. python tools/serving_figures.py --requests 200 llama
    PYTHONPATH=. python tools/serving_figures.py --soak 2000 llama     # arrivals by a fixed seed, every 20th request cancelled

`--stand-in` takes the loader of tests/fakes/kernels_loader, where no version of `kernels` fits Transformers. Models are tiny
and random, in float32; the reference is sdpa, or eager where sdpa lacks what the model needs (a cap, sinks). Programs are the
different kernels, shapes and constants that were run; each is compiled once on a device.
"""

import argparse
import os
import resource
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
SIZES = {
    "vocab_size": 500,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 64,
    "max_position_embeddings": 4096,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": 0,
}
LAYERS = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 512}
MODELS = {
    "llama": ("Llama", {}, "sdpa"),
    "gqa8": ("Qwen3", {"num_attention_heads": 8, "num_key_value_heads": 1}, "sdpa"),
    "mistral": ("Mistral", {"sliding_window": 300}, "sdpa"),
    "gemma3": ("Gemma3", LAYERS, "sdpa"),
    "gemma2": ("Gemma2", {**LAYERS, "attn_logit_softcapping": 5.0, "query_pre_attn_scalar": 16}, "eager"),
    "gpt_oss": ("GptOss", {**LAYERS, "num_local_experts": 2, "num_experts_per_tok": 1}, "eager"),
}
"""Configuration class, changes, and the reference."""
BLOCKS, BLOCK_TOKENS = 256, 32


def build(name):
    """A tiny random model of a kind."""
    import torch
    import transformers

    kind, changes, _ = MODELS[name]
    config_class = getattr(transformers, "Gemma3TextConfig" if kind == "Gemma3" else f"{kind}Config")
    torch.manual_seed(0)
    model = getattr(transformers, f"{kind}ForCausalLM")(config_class(**{**SIZES, **changes})).eval()
    with torch.no_grad():  # wide scores and logits: no two tokens are as good as each other within rounding
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.mul_(4.0)
    return model


def listed(model, ours):
    """The name to ask for: of a model that takes listed kernels only, one of these, which LOCAL_KERNELS then leads to us."""
    from nki_hf.adapters.hub_kernel import HUB_NAME, set_local_kernels

    names = [name for name in getattr(model, "_compatible_flash_implementations", None) or () if "/" in name]
    if ours != HUB_NAME or not names:
        return ours
    set_local_kernels(name=names[0])
    return names[0]


def prompts(count, most, seed=0):
    """Prompts of 1 to `most` tokens, the logarithms of their lengths evenly spread."""
    import numpy as np

    rng = np.random.default_rng(seed)
    lengths = rng.permutation(np.geomspace(1, most, count).round().astype(int))
    return [rng.integers(1, SIZES["vocab_size"], length).tolist() for length in lengths]


def configs(new_tokens):
    """Generation and batching."""
    from transformers import ContinuousBatchingConfig, GenerationConfig

    batching = ContinuousBatchingConfig(num_blocks=BLOCKS, max_batch_tokens=512, max_requests_per_batch=32)
    for name in ("page_size", "block_size"):
        if hasattr(batching, name):
            setattr(batching, name, BLOCK_TOKENS)
            break
    if hasattr(batching, "auto_switch_to_flash"):
        batching.auto_switch_to_flash = False  # the reference stays what it is
    return GenerationConfig(max_new_tokens=new_tokens, do_sample=False, eos_token_id=-1, pad_token_id=0), batching


def compare(name, ours, count, most, new_tokens):
    """One line: tokens equal, programs, launches, seconds."""
    import nki_hf

    model, given = build(name), prompts(count, most)
    ours = listed(model, ours)
    found, seconds = [], []
    for implementation in (MODELS[name][2], ours):
        nki_hf.explain(reset=True)
        PROGRAMS.clear()
        model.set_attn_implementation(implementation)
        generation, batching = configs(new_tokens)
        began = time.perf_counter()
        outputs = model.generate_batch(inputs=given, generation_config=generation, continuous_batching_config=batching)
        seconds.append(time.perf_counter() - began)
        ordered = sorted(outputs.items(), key=lambda item: int(item[0].rpartition("_")[2]))
        found.append([output.generated_tokens for _, output in ordered])
    equal = sum(a == b and len(a) == new_tokens for a, b in zip(*found, strict=True))
    report = nki_hf.explain()
    print(
        f"{name:8} {equal} of {count} equal to {MODELS[name][2]}; {len(PROGRAMS)} programs, {report.calls:,} launches, "
        f"{report.fallbacks} fallbacks; {seconds[0]:.1f} s, nki on the simulator {seconds[1]:.1f} s",
        flush=True,
    )
    return equal == count and not report.fallbacks


PROGRAMS = set()


def count_programs():
    """Note every kernel, shape and constant that the simulator is asked to run."""
    from nki_hf.backends import simulator

    run = simulator.SimulatorBackend.run

    def noted(self, call):
        shapes = tuple((name, tuple(value.shape)) for name, value in call.tensors.items() if value is not None)
        PROGRAMS.add((call.kernel, shapes, repr(sorted(call.constants.items()))))
        return run(self, call)

    simulator.SimulatorBackend.run = noted


def memory_bytes():
    """Resident memory of this process."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def soak(name, ours, count, new_tokens):
    """Requests that arrive by a fixed seed, every 20th cancelled; tokens against sdpa's, and memory after the first quarter."""
    import numpy as np

    model, kinds = build(name), prompts(40, 60, seed=1)
    ours = listed(model, ours)
    model.set_attn_implementation(MODELS[name][2])
    generation, batching = configs(new_tokens)
    outputs = model.generate_batch(inputs=kinds, generation_config=generation, continuous_batching_config=batching)
    ordered = sorted(outputs.items(), key=lambda item: int(item[0].rpartition("_")[2]))
    expected = [output.generated_tokens for _, output in ordered]
    model.set_attn_implementation(ours)
    rng, began = np.random.default_rng(0), time.perf_counter()
    manager = model.init_continuous_batching(generation_config=generation, continuous_batching_config=batching)
    manager.start()
    wrong = cancelled = done = sent = 0
    memory, waiting = [], {}
    while sent < count or waiting:
        for _ in range(int(rng.poisson(3)) if sent < count and len(waiting) < 64 else 0):
            if sent == count:
                break
            kind = int(rng.integers(len(kinds)))
            key = manager.add_request(kinds[kind], request_id=f"r{sent}", max_new_tokens=new_tokens)
            if sent % 20 == 19:
                manager.cancel_request(key)
                cancelled += 1
            else:
                waiting[key] = kind
            sent += 1
        output = manager.get_result(timeout=0.02)
        while output is not None:
            kind = waiting.pop(output.request_id, None)
            if kind is not None:
                done += 1
                wrong += output.generated_tokens != expected[kind]
                if done % 50 == 0:
                    memory.append((sent, memory_bytes()))
            output = manager.get_result(timeout=0.001)
        if not manager.is_running():
            raise RuntimeError("the manager ended")
    manager.stop(block=True)
    early = max(size for number, size in memory if number <= count // 4 + 100)
    growth = max(size for _, size in memory) / early - 1
    print(
        f"{name}: {done:,} answered, {cancelled} cancelled, {wrong} wrong; {len(PROGRAMS)} programs; memory after the first "
        f"quarter {early / 2**20:,.0f} MiB, {growth:+.1%} at most after it; {time.perf_counter() - began:,.0f} s"
    )
    return not wrong and growth <= 0.02


def main():
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=list(MODELS))
    parser.add_argument("--requests", type=int, default=32)
    parser.add_argument("--most", type=int, default=2000, help="tokens of the longest prompt")
    parser.add_argument("--new-tokens", type=int, default=8)
    parser.add_argument("--soak", type=int, default=0)
    parser.add_argument("--stand-in", action="store_true")
    given = parser.parse_args()
    if given.stand_in:
        sys.path.insert(0, str(ROOT / "tests" / "fakes" / "kernels_loader"))
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from nki_hf.adapters.hub_kernel import serving

    found = serving()
    if found.name is None:
        sys.exit(found.problem)
    count_programs()
    if given.soak:
        good = [soak(name, found.name, given.soak, given.new_tokens) for name in given.models]
    else:
        good = [compare(name, found.name, given.requests, given.most, given.new_tokens) for name in given.models]
    sys.exit(0 if all(good) else 1)


if __name__ == "__main__":
    main()
