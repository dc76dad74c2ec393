"""Continuous batching that refuses alone what would end its worker: which requests, and that all others go on."""

import asyncio
import copy
import time
from types import SimpleNamespace

import pytest
import transformers
from tiny import SIZES, build, tiny_qwen3
from transformers import ContinuousBatchingConfig, GenerationConfig

from nki_hf.adapters.checked_batching import checked_batching, largest, refusal
from nki_hf.serve import _CheckedManager

LAYERS = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 32}
GPT2 = {
    "vocab_size": 64, "n_positions": 40, "n_embd": 32, "n_layer": 2, "n_head": 2, "bos_token_id": 0, "eos_token_id": 0,
}  # fmt: skip
# The most inputs of a request: what the cache of 8 blocks holds. Of two kinds of layers a block has a page each, so that all
# 16 pages of 8 tokens but the 4 of the window are the full layer's. Windows alone end nowhere, a table of positions does.
MODELS = {
    "full": (tiny_qwen3, 64),
    "windows and full": (lambda: _named("Gemma3", "Gemma3TextConfig", **LAYERS), 96),
    "windows": (lambda: _named("Mistral", "MistralConfig", sliding_window=32), None),
    "a window above the cache": (lambda: _named("Mistral", "MistralConfig", sliding_window=1000), 64),
    "a table of positions": (lambda: build(transformers.GPT2LMHeadModel, transformers.GPT2Config(**GPT2)), 40),
}


def _named(kind, config, **changes):
    return build(getattr(transformers, f"{kind}ForCausalLM"), getattr(transformers, config)(**SIZES, **changes))


def _config(**changes):
    return ContinuousBatchingConfig(
        page_size=8, num_blocks=8, max_batch_tokens=32, auto_switch_to_flash=False, allow_block_sharing=False, **changes
    )


def _manager(model):
    model.set_attn_implementation("sdpa")
    manager = model.init_continuous_batching(
        generation_config=GenerationConfig(max_new_tokens=4, do_sample=False, eos_token_id=-1, pad_token_id=0),
        continuous_batching_config=checked_batching(_config()),
    )
    manager.start()
    return manager


def _served(manager, requests):
    """Tokens or error of each request, `name: (prompt, new tokens)`, all sent at once."""
    for name, (prompt, new_tokens) in requests.items():
        manager.add_request(prompt, request_id=name, max_new_tokens=new_tokens)
    found, until = {}, time.monotonic() + 60
    while len(found) < len(requests) and time.monotonic() < until:
        output = manager.get_result(timeout=0.2)
        if output is not None:
            found[output.request_id] = output.error or output.generated_tokens
    assert manager.is_running()
    return found


@pytest.mark.parametrize("case", MODELS)
def test_only_what_cannot_be_served_is_refused_and_the_others_texts_stay(case):
    make, room = MODELS[case]
    manager = _manager(make())
    try:
        others = {f"other {n}": (list(range(1, n + 2)), 6) for n in range(6)}
        expected = _served(manager, others)
        bad = {"empty": ([], 4), "token": ([3, 64], 4), "negative token": ([-1], 4), "negative answer": ([1], -1)}
        good = {"no answer": ([1, 2], 0)}
        if room is not None:
            bad["prompt"] = ([1] * (room + 1), 1)
            bad["prompt without answer"] = ([1] * (room + 1), 0)
            bad["one more"] = ([1] * (room - 2), 4)
            bad["answer"] = ([1], 10**12)
            good["all of it"] = ([1] * (room - 3), 4)
            good["a prompt alone"] = ([1] * room, 1)
            good["an answer alone"] = ([1], room)
        else:
            good["long"] = ([1] * 200, 4)
        found = _served(manager, {**bad, **others, **{f"{name} again": bad[name] for name in bad}, **good})
        assert {name: found[name] for name in others} == expected
        assert all(len(found[name]) == new_tokens for name, (_, new_tokens) in good.items())
        assert all(isinstance(found[name], str) for name in found if name.removesuffix(" again") in bad)
        assert _served(manager, others) == expected
        cache = manager.batch_processor.cache
        assert "no limit" in refusal(cache, [1], None)
        if room is not None:
            assert f"{room + 1} tokens together: max_tokens of at most 3 for this prompt" in found["one more"]
            assert largest(cache) == (64 if case == "a table of positions" else room)
    finally:
        manager.stop(block=True, timeout=10, hard_stop=True)


@pytest.mark.parametrize("sharing", [True, False])
def test_several_answers_come_for_prompts_that_transformers_cannot_fork_and_for_refused_ones(sharing):
    model = tiny_qwen3()
    model.set_attn_implementation("sdpa")
    config = _config()
    config.allow_block_sharing = sharing
    generation = GenerationConfig(max_new_tokens=3, do_sample=True, eos_token_id=-1, pad_token_id=0, num_return_sequences=2)
    lengths = [1, 2, 8, 9, 9, 17, 200]  # pages of 8 tokens, 64 in all
    prompts = [list(range(1, 50))[:length] if length < 200 else [1] * length for length in lengths]
    manager = model.init_continuous_batching(generation, checked_batching(config))
    manager.start()
    try:
        found = {}
        for prompt in prompts:
            (name,) = manager.add_requests([prompt])
            until = time.monotonic() + 20
            while not {name, f"{name}__child#0"} <= found.keys() and time.monotonic() < until:
                output = manager.get_result(timeout=0.2)
                if output is not None:
                    found[output.request_id] = output
        assert manager.is_running()
    finally:
        manager.stop(block=True, timeout=10, hard_stop=True)
    assert len(found) == 2 * len(prompts)
    for length, first, second in zip(lengths, *[iter(found.values())] * 2, strict=True):
        for output in (first, second):
            assert len(output.generated_tokens) == (3 if length < 200 else 0)
            assert ("200 tokens" in (output.error or "")) == (length == 200)


def test_a_users_configuration_is_kept_and_its_scheduler_stays():
    given = _config(scheduler_type="prefill_first", safety_margin=0.25)
    before = copy.copy(given)
    checked = checked_batching(given)
    assert given == before
    assert checked.safety_margin == 0.25
    assert checked.scheduler_type.endswith("prefill_first")
    assert checked_batching(checked) == checked
    assert checked_batching().scheduler_type.endswith("fifo")
    with pytest.raises(ValueError, match=r"'last_first' is none .*fifo"):
        checked_batching(_config(scheduler_type="last_first"))


def test_an_old_release_is_named(monkeypatch):
    monkeypatch.setattr("importlib.metadata.version", lambda _: "5.17.3")
    with pytest.raises(ValueError, match=r"5\.17\.3 is too old"):
        checked_batching()


class _Manager:
    """What a server's manager of continuous batching has; the cache is there from the second look on."""

    def __init__(self, cache, alive=True):
        self.cache, self.alive, self.asked = cache, alive, 0

    @property
    def scheduler(self):
        self.asked += 1
        if self.asked == 1:
            raise RuntimeError("Continuous batching processor not initialized.")
        return SimpleNamespace(cache=self.cache)

    def is_alive(self):
        return self.alive

    def generate_streaming(self, model, processor, inputs, gen_config, request_id):
        return "streamed"

    async def generate_non_streaming(self, model, processor, inputs, gen_config, request_id):
        return "whole"


def test_a_server_answers_what_it_cannot_serve_with_400_before_a_stream_begins():
    fastapi = pytest.importorskip("fastapi", reason="fastapi is not installed, which `transformers serve` needs")
    allocator = SimpleNamespace(
        needs_new_blocks=lambda _, past_length, query_length: -(-query_length // 8), blocks_per_sector=1
    )
    cache = SimpleNamespace(
        config=SimpleNamespace(vocab_size=10, rope_parameters={"rope_theta": 1e4}), pool=SimpleNamespace(num_sectors=4),
        cache_allocators={"full": allocator}, use_prefix_sharing=False,
    )  # fmt: skip

    def ask(prompt, new_tokens, manager):
        words = (None, None, {"input_ids": prompt}, SimpleNamespace(max_new_tokens=new_tokens))
        streamed = _CheckedManager(manager).generate_streaming(*words, request_id="1")
        return streamed, asyncio.run(_CheckedManager(manager).generate_non_streaming(*words, request_id="1"))

    assert ask([1] * 30, 3, _Manager(cache)) == ("streamed", "whole")
    for way in (lambda *words: ask(*words), lambda *words: ask(*words)[1]):
        with pytest.raises(fastapi.HTTPException) as refused:
            way([1] * 30, 4, _Manager(cache))
        assert refused.value.status_code == 400
        assert "30 tokens and up to 4 new ones" in refused.value.detail
    with pytest.raises(RuntimeError, match="not initialized"):  # the worker is dead: no waiting
        ask([1], 1, _Manager(cache, alive=False))
