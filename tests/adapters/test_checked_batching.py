"""Continuous batching that refuses alone what would end its worker: which requests, and that all others go on."""

import asyncio
import copy
import re
import time
from types import SimpleNamespace

import pytest
import torch
import transformers
from tiny import SIZES, build, tiny_qwen3
from transformers import ContinuousBatchingConfig, GenerationConfig

from nki_hf.adapters.checked_batching import checked_batching, largest, model_refusal, refusal
from nki_hf.adapters.hub_kernel import HUB_NAME, Serving
from nki_hf.serve import _CheckedManager, _run, refuse_models

LAYERS = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 32}
GPT2 = {
    "vocab_size": 64,
    "n_positions": 40,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 2,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
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
        assert "Pass max_new_tokens: continuous batching does not read max_length." in refusal(cache, [1], None)
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


HALF = torch.bfloat16
NAMES = {  # model, dtype, attention implementation
    "Conv1D": ("a table of positions", torch.float32, HUB_NAME),
    "Conv1D, FlashAttention": ("a table of positions", torch.float32, "flash_attention_2"),
    "Conv1D in 16 bits": ("a table of positions", HALF, HUB_NAME),
    "Linear": ("full", torch.float32, HUB_NAME),
    "windows": ("windows and full", torch.float32, HUB_NAME),
}


@pytest.mark.parametrize("case", NAMES)
def test_a_model_is_refused_at_the_start_exactly_where_transformers_finds_no_dtype(case):
    from transformers.integrations.flash_attention import get_target_dtype

    kind, dtype, name = NAMES[case]
    model = MODELS[kind][0]().to(dtype)
    model.config._attn_implementation = name  # its loading is the affair of other tests
    fails = False
    for layer in model.modules():
        if type(layer).__name__.endswith("Attention"):
            try:
                get_target_dtype(torch.zeros(1, dtype=dtype), layer)
            except StopIteration:
                fails = True
    assert fails == ("Conv1D" in case and dtype is torch.float32)
    assert bool(model_refusal(model)) == fails
    if fails:
        with pytest.raises(ValueError, match=r"dtype=float32 .*GPT2Attention has no torch\.nn\.Linear.* 16-bit dtype"):
            checked_batching(_config(), model=model)
        server = SimpleNamespace(_model_manager=SimpleNamespace(loaded_models={"m": SimpleNamespace(model=model)}))
        with pytest.raises(ValueError, match="16-bit dtype"):  # the server, before it serves
            refuse_models(server)
        model.config._attn_implementation = "sdpa"
    assert checked_batching(_config(), model=model) == checked_batching(_config())
    model.config._is_quantized = True
    model.config._attn_implementation = name
    assert not model_refusal(model)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (StopIteration(), r"^StopIteration, .*16-bit dtype"),
        (KeyError(), "^'KeyError, "),
        (RuntimeError("a reason"), "^a reason$"),
    ],
)
def test_an_exception_without_a_text_that_ends_the_worker_is_named_in_the_reason(error, words):
    model = tiny_qwen3()

    def fail(*_):
        raise error

    model.model.embed_tokens.forward = fail
    manager = _manager(model)
    try:
        manager.add_request([1, 2], request_id="r", max_new_tokens=2)
        output, until = None, time.monotonic() + 60
        while output is None and time.monotonic() < until:
            output = manager.get_result(timeout=0.2)
    finally:
        manager.stop(block=True, timeout=10, hard_stop=True)
    assert re.search(words, output.error)


HERE = {
    "here": (Serving(name=HUB_NAME), "takes 'nki-hf/flash-attention'."),
    "not here": (Serving(name=None, problem="a reason."), "takes 'nki-hf/flash-attention', but not here: a reason."),
    "older": (Serving(name="nki"), "from Transformers 5.20 on; here generate_batch alone takes 'nki'."),
}


@pytest.mark.parametrize("case", HERE)
def test_the_server_names_our_name_where_it_refuses_an_attention_implementation(case, monkeypatch):
    pytest.importorskip("fastapi", reason="fastapi is not installed, which `transformers serve` needs")
    from transformers.cli.serving.model_manager import ModelManager

    found, words = HERE[case]
    monkeypatch.setattr("nki_hf.serve.serving", lambda: found)

    def refusing(*_, **__):
        ModelManager(attn_implementation="nki")

    with pytest.raises(ValueError, match=r"'nki'\. Must be one of ") as refused:
        _run(refusing, [])
    assert str(refused.value).endswith(words)

    def other(*_, **__):
        raise ValueError("another reason")

    with pytest.raises(ValueError, match=r"^another reason$"):
        _run(other, [])


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
        config=SimpleNamespace(vocab_size=10, rope_parameters={"rope_theta": 1e4}),
        pool=SimpleNamespace(num_sectors=4),
        cache_allocators={"full": allocator},
        use_prefix_sharing=False,
    )

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
        assert "max_completion_tokens" not in refused.value.detail
        with pytest.raises(fastapi.HTTPException) as refused:  # what a chat asks for that names no max_tokens
            way([1], 1024, _Manager(cache))
        assert "max_completion_tokens is not read" in refused.value.detail
    with pytest.raises(RuntimeError, match="not initialized"):  # the worker is dead: no waiting
        ask([1], 1, _Manager(cache, alive=False))


def test_a_server_starts_its_worker_with_the_checks_and_refuses_a_model_that_came_with_the_request():
    fastapi = pytest.importorskip("fastapi", reason="fastapi is not installed, which `transformers serve` needs")
    started = []
    manager = SimpleNamespace(_cb_config=_config(), init_cb=lambda model, generation: started.append(manager._cb_config))
    model = MODELS["a table of positions"][0]()
    model.config._attn_implementation = HUB_NAME
    with pytest.raises(fastapi.HTTPException) as refused:
        _CheckedManager(manager).init_cb(model, GenerationConfig())
    assert refused.value.status_code == 400
    assert "16-bit dtype" in refused.value.detail
    assert not started
    _CheckedManager(manager).init_cb(model.to(HALF), GenerationConfig())
    _CheckedManager(manager).init_cb(model, GenerationConfig())  # asked again with each request
    assert started == [checked_batching(_config())] * 2
