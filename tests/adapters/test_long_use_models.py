"""Long and odd use of models: growing caches, many shapes, threads, forks, interrupts, two settings in one process."""

import multiprocessing
import signal
import threading
import tracemalloc

import pytest
import torch
from tiny import logits, tiny_qwen3, token_ids, worst

import nki_hf
from nki_hf.adapters import backend_choice, call_log
from nki_hf.adapters import decision as made
from nki_hf.backends.simulator import SimulatorBackend, simulator_backend
from nki_hf.chips import get_chip
from nki_hf.dispatch import decide
from nki_hf.kernels.flash_prefill.plan import plan_prefill
from nki_hf.settings import settings
from nki_hf.sim.execution.machine import Machine

# CPU tensors here are the simulator's: these tests are about its recordings.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


@pytest.fixture(autouse=True)
def _strict():
    with nki_hf.using(strict=True, backend="simulator", chip="trn2"):
        yield


def test_two_hundred_decode_steps_retrace_nothing_and_keep_their_memory():
    model, target = tiny_qwen3(max_position_embeddings=512), simulator_backend("trn2")
    target.clear()
    ids = token_ids(1, 2)
    model.set_attn_implementation("nki")
    recorded, memory, tokens = [], [], []
    tracemalloc.start()
    try:
        with torch.no_grad():
            result = model(ids, use_cache=True)
            for step in range(200):
                following = result.logits[:, -1:].argmax(-1)
                tokens.append(following)
                result = model(following, past_key_values=result.past_key_values, use_cache=True)
                if step in (20, 199):
                    recorded.append(target.programs_recorded)
                    memory.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert recorded[0] == recorded[1]
    # What grows by a step: one decision per length and a row of counts. Tensors are torch's and not counted here.
    assert memory[1] - memory[0] < 4e6, memory
    expected = logits(model, "eager", torch.cat([ids, *tokens], 1))[:, 1:].argmax(-1)
    assert torch.equal(torch.cat(tokens, 1), expected[:, :-1])


def test_many_shapes_stay_within_the_bounds_of_the_caches(monkeypatch):
    target = SimulatorBackend(get_chip("trn2"), threads=1, pool_bytes=3_000_000)
    monkeypatch.setattr(backend_choice, "simulator_backend", lambda chip: target)
    model = tiny_qwen3(num_hidden_layers=1)
    lengths, rows = list(range(40, 60, 2)), []
    call_log.reset()
    for length in (*lengths, lengths[0]):
        ids = token_ids(1, length)
        assert worst(logits(model, "nki", ids), logits(model, "eager", ids)) < 2e-6
        rows.append(len(call_log.rows()))
    pool = target._pool
    assert pool._used <= pool._limit or len(pool._idle) == 1
    # The first shape was evicted meanwhile, so that its second use is a recording more.
    assert target.programs_recorded > len(lengths)
    assert set(rows) == {1}  # counts do not grow with the shapes
    for by_shape in (made._decided, decide, plan_prefill):
        assert by_shape.cache_info().maxsize is not None


@pytest.mark.filterwarnings("always::nki_hf.adapters.call_log.FallbackWarning")
def test_fallbacks_of_many_lengths_are_one_row_and_one_warning(recwarn):
    call_log.reset()
    with nki_hf.using(strict=False):
        for length in range(40, 50):
            q = torch.ones(1, 1, length, 8, dtype=torch.float64)
            torch.testing.assert_close(nki_hf.attention(q, q, q), q)  # the mean of equal rows
    assert [row.calls for row in call_log.rows()] == [10]
    assert len([each for each in recwarn if each.category is call_log.FallbackWarning]) == 1


def test_two_models_with_different_settings_do_not_mix_across_threads():
    lengths = {"trn1": 7, "trn2": 9, "torch_reference": 11}
    got, expected, before = {}, {}, {chip: simulator_backend(chip).programs_recorded for chip in ("trn1", "trn2")}
    for chip in ("trn1", "trn2"):
        simulator_backend(chip).clear()

    def work(name):
        model, ids = tiny_qwen3(num_hidden_layers=1), token_ids(2, lengths[name])
        expected[name] = logits(model, "eager", ids)
        own = {"backend": name} if name == "torch_reference" else {"chip": name, "backend": "simulator"}
        with nki_hf.using(strict=True, **own):
            got[name] = [logits(model, "nki", ids) for _ in range(3)]

    threads = [threading.Thread(target=work, args=(name,)) for name in lengths]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name in lengths:
        assert all(worst(each, expected[name]) < 2e-6 for each in got[name]), name
    # each simulator ran the model of its own thread: had the settings mixed, one of them would have recorded nothing
    assert all(simulator_backend(chip).programs_recorded > count for chip, count in before.items())


def test_settings_of_a_block_do_not_reach_other_threads():
    seen = []
    with nki_hf.using(chip="trn1"):
        thread = threading.Thread(target=lambda: seen.append(settings().chip))
        thread.start()
        thread.join()
        assert settings().chip == "trn1"
    assert seen == ["trn2"]


def _child(queue, model, ids):
    torch.set_num_threads(1)  # torch's own threads do not survive a fork
    queue.put(logits(model, "nki", ids).tolist())


def test_a_fork_after_use_gives_the_same_numbers():
    torch.set_num_threads(1)
    model, ids = tiny_qwen3(num_hidden_layers=1), token_ids(2, 9)
    expected = logits(model, "nki", ids)
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_child, args=(queue, model, ids))
    child.start()
    got = torch.tensor(queue.get(timeout=60))
    child.join(60)
    assert child.exitcode == 0
    assert torch.equal(got, expected)


def test_an_interrupt_inside_a_kernel_leaves_model_and_process_usable(monkeypatch, interrupts):
    target = simulator_backend("trn2")
    target.clear()
    model, ids = tiny_qwen3(num_hidden_layers=1), token_ids(1, 33)
    original, issued = Machine.issue, []

    def interrupted(self, *arguments, **options):
        issued.append(1)
        if len(issued) == 20:
            signal.raise_signal(signal.SIGINT)
        return original(self, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Machine, "issue", interrupted)
        with pytest.raises(KeyboardInterrupt):
            logits(model, "nki", ids)
    assert len(issued) >= 20  # the threads of the other parts go on to their end
    expected = logits(model, "eager", ids)
    assert worst(logits(model, "nki", ids), expected) < 2e-6
    assert worst(logits(model, "nki", ids), expected) < 2e-6  # replayed
