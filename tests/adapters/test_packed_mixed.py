"""A row of packed sequences whose mask does not keep them apart: a warning exactly where the numbers are mixed."""

import warnings

import pytest
import torch
import transformers
from tiny import tiny_qwen3
from varlen_reference import starts

import nki_hf  # noqa: F401
from nki_hf.adapters.keys import Keys
from nki_hf.adapters.packed import mixed
from nki_hf.adapters.packed.mixed import MixedSequencesWarning, warn_if_mixed

LENGTHS = [5, 7, 4]
SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 32,
    "max_position_embeddings": 64,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": 0,
}
MODELS = {
    "Llama": {},
    "Mistral": {"sliding_window": 6},
    "GptOss": {"num_local_experts": 2, "num_experts_per_tok": 1},
    "StableLm": {},  # its layers get no cu_seq_lens
}
WAYS = {
    "positions alone": {"use_cache": False},
    "a mask of ones": {"use_cache": False, "attention_mask": torch.ones(1, sum(LENGTHS), dtype=torch.long)},
    "a cache": {"use_cache": True},
    "first rows": {"cu_seq_lens_q": starts(LENGTHS), "cu_seq_lens_k": starts(LENGTHS), "max_length_q": 7, "max_length_k": 7},
}


@pytest.fixture(autouse=True)
def not_warned(monkeypatch):
    monkeypatch.setattr(mixed, "_warned", False)


def _warned(call):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        result = call()
    return result, sum(issubclass(each.category, MixedSequencesWarning) for each in seen)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", MODELS)
def test_a_warning_tells_that_sequences_are_mixed_and_only_then(kind, way):
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**SIZES, **MODELS[kind])
    model = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
    model.set_attn_implementation("nki")
    ids = torch.randint(1, 64, (1, sum(LENGTHS)), generator=torch.Generator().manual_seed(0))
    positions = torch.cat([torch.arange(n) for n in LENGTHS])[None]
    with torch.no_grad():
        alone = torch.cat([model(part, use_cache=False).logits for part in ids.split(LENGTHS, 1)], 1)
        logits, count = _warned(lambda: model(ids, position_ids=positions, **WAYS[way]).logits)
    apart = torch.allclose(logits, alone, rtol=0, atol=1e-4)
    assert count == (0 if apart else 1)
    if way == "a mask of ones":
        assert not apart  # so that this test meets both
    if kind == "Llama" and way in ("positions alone", "first rows"):
        assert apart


def _mask(seen, *, added=False):
    seen = torch.tensor([[list(map(int, row)) for row in entry] for entry in seen], dtype=torch.bool)[:, None]
    return torch.where(seen, 0.0, torch.finfo(torch.float32).min) if added else seen


TRIANGLE = Keys(ahead=1)
BLOCKS = ["1000", "1100", "0010", "0011"]
FULL = ["1000", "1100", "1110", "1111"]
PADDED_RIGHT = ["1000", "1100", "1100", "1100"]
PADDED_LEFT = ["0000", "0000", "0010", "0011"]
CASES = {  # positions, keys, warnings
    "a pack under a triangle": ([[0, 1, 0, 1]], TRIANGLE, 1),
    "a pack from another position on": ([[2, 3, 2, 3]], TRIANGLE, 1),
    "one sequence": ([[0, 1, 2, 3]], TRIANGLE, 0),
    "a pack whose mask knows it": ([[0, 1, 0, 1]], Keys(bias=_mask([BLOCKS])), 0),
    "the same as a float mask": ([[0, 1, 0, 1]], Keys(bias=_mask([BLOCKS], added=True)), 0),
    "a float mask that does not": ([[0, 1, 0, 1]], Keys(bias=_mask([FULL], added=True)), 1),
    "bounds that know it": ([[0, 1, 0, 1]], Keys(ahead=1).within(torch.tensor([[0, 0, 2, 2]]), torch.tensor([[4] * 4])), 0),
    "bounds that do not": ([[0, 1, 0, 1]], Keys(ahead=1).within(torch.tensor([[0] * 4]), torch.tensor([[4] * 4])), 1),
    "padding at the right": ([[0, 1, 0, 0]], Keys(bias=_mask([PADDED_RIGHT])), 0),
    "padding at the left": ([[1, 1, 0, 1]], Keys(bias=_mask([PADDED_LEFT])), 0),
    "the second row of a batch": ([[0, 1, 2, 3], [0, 1, 0, 1]], Keys(bias=_mask([FULL, FULL])), 1),
    "the first row of a batch, whose mask knows it": ([[0, 1, 0, 1], [0, 1, 2, 3]], Keys(bias=_mask([BLOCKS, FULL])), 0),
    "an encoder": ([[0, 1, 0, 1]], Keys(), 0),
    "a window of one key": ([[0, 1, 0, 1]], Keys(window=1, ahead=1), 0),
    "positions of images": ([[[0, 1, 0, 1]]] * 3, TRIANGLE, 0),
    "equal positions": ([[0, 1, 1, 1]], TRIANGLE, 0),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_a_mixed_pack(case):
    positions, keys, count = CASES[case]
    assert _warned(lambda: warn_if_mixed(torch.tensor(positions), keys, 4, lambda: "a layer"))[1] == count


def test_positions_that_are_written_anew_are_read_anew():
    positions = torch.arange(4)[None]
    warn_if_mixed(positions, TRIANGLE, 4, lambda: "a layer")
    positions[0, 2:] -= 2
    with pytest.warns(MixedSequencesWarning, match=r"row 2.*first in a layer.*return_flash_attn_kwargs"):
        warn_if_mixed(positions, TRIANGLE, 4, lambda: "a layer")
    assert _warned(lambda: warn_if_mixed(positions, TRIANGLE, 4, lambda: "a layer"))[1] == 0  # once


def test_generation_of_a_padded_batch_does_not_warn():
    model = tiny_qwen3()
    model.set_attn_implementation("nki")
    ids, mask = torch.tensor([[0, 0, 5, 6], [3, 4, 5, 6]]), torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]])
    for given in (mask, mask.flip(1)):
        _, count = _warned(lambda given=given: model.generate(ids, attention_mask=given, max_new_tokens=3, do_sample=False))
        assert count == 0
