"""Models whose classes decline sdpa, or never ask for an attention: without a mask nothing is hidden, as in their own eager."""

import pytest
import torch
from transformers import (
    BigBirdPegasusConfig,
    BigBirdPegasusForConditionalGeneration,
    BloomConfig,
    BloomForCausalLM,
    BridgeTowerConfig,
    BridgeTowerModel,
    GraniteMoeSWAConfig,
    GraniteMoeSWAForCausalLM,
    NllbMoeConfig,
    NllbMoeForConditionalGeneration,
)

import nki_hf

LARGE = 0.5
"""Standard deviation of the weights: softmaxes are sharp, so that a triangle too many or too few costs more than 0.1."""


def _large(model):
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() > 1:
                weight.normal_(std=LARGE, generator=generator)
            elif "sink" in name:
                weight.normal_(generator=generator)
    return model.eval()


def _both(model, *, calls, **inputs):
    """Outputs under eager and under "nki", and whether "nki" called the attention function."""
    found = {}
    for implementation in ("eager", "nki"):
        for module in model.modules():
            if hasattr(module, "config"):
                module.config._attn_implementation = implementation
        nki_hf.explain(reset=True)
        with torch.no_grad(), nki_hf.using(strict=True):
            found[implementation] = model(**inputs)
    assert (nki_hf.explain().calls > 0) is calls
    return found["eager"], found["nki"]


def _close(ours, theirs):
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4 * float(theirs.abs().max()))


def test_cross_layers_of_bridgetower_whose_modules_say_causal_see_the_whole_image():
    text = {"vocab_size": 60, "num_attention_heads": 4, "intermediate_size": 48, "max_position_embeddings": 40}
    sizes = {"hidden_size": 64, "num_hidden_layers": 2}  # the image's heads are 64 wide
    vision = {"image_size": 16, "patch_size": 8}
    config = BridgeTowerConfig(
        **sizes, num_attention_heads=4, text_config={**text, **sizes}, vision_config={**vision, **sizes, "num_hidden_layers": 3}
    )
    assert not BridgeTowerModel._supports_sdpa
    model = _large(BridgeTowerModel(config))
    ids = torch.randint(3, 60, (2, 7), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[0, -3:] = 0
    pixels = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(2))
    theirs, ours = _both(model, calls=True, input_ids=ids, attention_mask=mask, pixel_values=pixels)
    _close(ours.image_features, theirs.image_features)
    _close(ours.text_features[mask.bool()], theirs.text_features[mask.bool()])
    _close(ours.pooler_output, theirs.pooler_output)


class OwnBigBirdPegasusConfig(BigBirdPegasusConfig):
    """A configuration that adds nothing."""


class OwnNllbMoeConfig(NllbMoeConfig):
    """A configuration that adds nothing."""


class OwnBloomConfig(BloomConfig):
    """A configuration that adds nothing."""


class OwnGraniteMoeSWAConfig(GraniteMoeSWAConfig):
    """A configuration that adds nothing."""


_SEQ2SEQ = {
    "vocab_size": 60,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "max_position_embeddings": 40,
}
_SEQ2SEQ_CASES = {
    "bigbird_pegasus": (BigBirdPegasusForConditionalGeneration, BigBirdPegasusConfig, {"attention_type": "original_full"}),
    "bigbird_pegasus, subclassed": (
        BigBirdPegasusForConditionalGeneration,
        OwnBigBirdPegasusConfig,
        {"attention_type": "original_full"},
    ),
    "nllb_moe": (NllbMoeForConditionalGeneration, NllbMoeConfig, {"num_experts": 4}),
    "nllb_moe, subclassed": (NllbMoeForConditionalGeneration, OwnNllbMoeConfig, {"num_experts": 4}),
}


@pytest.mark.parametrize("case", _SEQ2SEQ_CASES)
@pytest.mark.parametrize("padded", [False, True])
def test_encoder_and_decoder_with_a_subclassed_configuration(case, padded):
    kind, config, options = _SEQ2SEQ_CASES[case]
    model = _large(kind(config(**_SEQ2SEQ, **options, decoder_start_token_id=2, pad_token_id=0)))
    generator = torch.Generator().manual_seed(1)
    ids, decoded = torch.randint(3, 60, (2, 7), generator=generator), torch.randint(3, 60, (2, 5), generator=generator)
    mask = torch.ones_like(ids)
    mask[0, -3:] = 0
    options = {"attention_mask": mask} if padded else {}
    theirs, ours = _both(model, calls=True, input_ids=ids, decoder_input_ids=decoded, **options)
    _close(ours.logits, theirs.logits)


_DECODER_CASES = {
    "bloom": (BloomForCausalLM, BloomConfig, {"n_layer": 2, "n_head": 4}, False),
    "bloom, subclassed": (BloomForCausalLM, OwnBloomConfig, {"n_layer": 2, "n_head": 4}, False),
    "granitemoe_swa": (GraniteMoeSWAForCausalLM, GraniteMoeSWAConfig, {}, True),
    "granitemoe_swa, subclassed": (GraniteMoeSWAForCausalLM, OwnGraniteMoeSWAConfig, {}, True),
}
_SWA = {
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "sliding_window": 4,
    "layer_types": ["sliding_attention", "full_attention"],
    "num_local_experts": 4,
    "pad_token_id": 0,
}


@pytest.mark.parametrize("case", _DECODER_CASES)
@pytest.mark.parametrize("padded", [False, True])
def test_a_decoder_with_a_subclassed_configuration(case, padded):
    kind, config, options, asks = _DECODER_CASES[case]
    options = {**_SWA, **options} if asks else options
    model = _large(kind(config(vocab_size=60, hidden_size=32, **options)))
    ids = torch.randint(3, 60, (2, 9), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[0, :3] = 0
    theirs, ours = _both(model, calls=asks, input_ids=ids, **({"attention_mask": mask} if padded else {}))
    rows = mask.bool() if padded else torch.ones_like(mask).bool()
    _close(ours.logits[rows], theirs.logits[rows])


def test_weights_of_granitemoe_swa_are_those_of_its_own_eager():
    model = _large(GraniteMoeSWAForCausalLM(GraniteMoeSWAConfig(vocab_size=60, hidden_size=32, **_SWA)))
    ids = torch.randint(3, 60, (1, 6), generator=torch.Generator().manual_seed(1))
    found = {}
    for implementation in ("eager", "nki"):
        model.set_attn_implementation(implementation)
        with torch.no_grad(), nki_hf.using(strict=False):
            found[implementation] = model(ids, output_attentions=True).attentions
    assert len(found["nki"]) == len(found["eager"]) == 2
    for ours, theirs in zip(found["nki"], found["eager"], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
