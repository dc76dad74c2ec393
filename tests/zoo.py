"""Tiny random models of many architectures, the inputs they take, and what is compared between two implementations."""

import copy
import inspect
import warnings
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers
from shrink import shrink
from transformers import CONFIG_MAPPING

__all__ = ["ARCHITECTURES", "MODES", "Architecture", "Outcome", "build", "deviation", "run_mode"]


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """One architecture.

    Attributes:
      name: its model type in Transformers.
      model: its model class.
      kind: decoder, encoder, seq2seq, vision, audio, audio2text or multimodal: decides inputs and modes.
      changes: on top of the table of `shrink`.
      inputs: further inputs by name: a shape for random floats.
    """

    name: str
    model: str
    kind: str
    changes: dict[str, Any] = field(default_factory=dict)
    inputs: dict[str, tuple[int, ...]] = field(default_factory=dict)


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

_BATCH, _LENGTH, _PADDING, _VOCABULARY = 2, 7, 2, 90
_IMAGE = (2, 3, 16, 16)
_MLA = {"num_key_value_heads": 4, "head_dim": 4}  # latent attention: as many kv heads as query heads, head_dim of the rope part


def _decoders() -> list[Architecture]:
    plain = """
        afmoe apertus arcee aria_text bart bigbird_pegasus biogpt bitnet blenderbot blenderbot-small cohere cohere2
        cohere2_moe ctrl cwm deepseek_v4 diffllama doge ernie4_5 ernie4_5_moe exaone exaone4 exaone_moe flex_olmo
        flint gemma gemma2 gemma3_text glm glm4 glm4_moe gpt2 gpt_bigcode gpt_neox gpt_oss granite granite_swa granitemoe
        granitemoe_swa granitemoeshared helium hunyuan_v1_dense hunyuan_v1_moe hy_v3 hyperclovax internlm3 jais2
        laguna lfm2 llama mbart mimo_v2_flash minimax_m2 minimax_m3_vl_text ministral ministral3 mistral mixtral
        modernbert-decoder nanochat nemotron olmo olmo2 olmo3 olmoe opt pegasus persimmon phi phi3 phimoe plbart qwen2
        qwen2_moe qwen3 qwen3_moe sarvam_moe seed_oss smollm3 solar_open stablelm starcoder2 vaultgemma
    """.split()
    latent = ["axk1", "axk2", "deepseek_v2", "deepseek_v3", "deepseek_v32", "glm4_moe_lite", "glm_moe_dsa", "minicpm3", "youtu"]
    special = {
        "deepseek_v4": {"num_key_value_heads": 1},
        "gemma2": {"attn_logit_softcapping": 5.0, "query_pre_attn_scalar": 3},
        "vaultgemma": {"attn_logit_softcapping": 5.0},
        "minimax_m3_vl_text": {"num_hidden_layers": 4, "index_block_size": 4, "index_topk_blocks": 1},
        "axk2": {"index_topk": 3},
        "deepseek_v32": {"index_topk": 3},
        "glm_moe_dsa": {"index_topk": 3},
    }
    names = transformers.models.auto.modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    found = [Architecture(name=name, model=names[name], kind="decoder", changes=special.get(name, {})) for name in plain]
    for name in latent:
        found.append(Architecture(name=name, model=names[name], kind="decoder", changes=_MLA | special.get(name, {})))
    return found


def _encoders() -> list[Architecture]:
    names = """
        albert bert bert-generation camembert distilbert dpr electra ernie esm eurobert gte jina_embeddings_v3 layoutlm
        modernbert nomic_bert roberta roberta-prelayernorm splinter xlm-roberta xlm-roberta-xl openai_privacy_filter
    """.split()
    classes = transformers.models.auto.modeling_auto.MODEL_MAPPING_NAMES
    found = []
    for name in names:
        model = classes[name]
        found.append(Architecture(name=name, model=model if isinstance(model, str) else model[0], kind="encoder"))
    return found


def _others() -> list[Architecture]:
    classes = transformers.models.auto.modeling_auto.MODEL_MAPPING_NAMES
    seq2seq = {
        "bart": "BartForConditionalGeneration",
        "longt5": "LongT5ForConditionalGeneration",
        "m2m_100": "M2M100ForConditionalGeneration",
        "marian": "MarianMTModel",
        "mt5": "MT5ForConditionalGeneration",
        "nllb-moe": "NllbMoeForConditionalGeneration",
        "pegasus_x": "PegasusXForConditionalGeneration",
        "switch_transformers": "SwitchTransformersForConditionalGeneration",
        "t5": "T5ForConditionalGeneration",
        "t5gemma": "T5GemmaForConditionalGeneration",
        "umt5": "UMT5ForConditionalGeneration",
    }
    vision = """
        aimv2_vision_model beit deit dinov2 dinov2_with_registers dinov3_vit dpt idefics3_vision ijepa internvl_vision mlcd
        pixio pixtral sapiens2 smolvlm_vision tipsv2_vision_model vit vit_msn yolos
    """.split()
    towers = "aimv2 altclip chinese_clip clip clipseg metaclip_2 owlv2 owlvit siglip".split()
    found = [
        Architecture(name=name, model=model, kind="seq2seq", changes={"decoder_start_token_id": 3})
        for name, model in seq2seq.items()
    ]
    for name in vision:
        if name in classes:
            found.append(Architecture(name=name, model=classes[name], kind="vision", inputs={"pixel_values": _IMAGE}))
    for name in towers:
        found.append(Architecture(name=name, model=classes[name], kind="two towers", inputs={"pixel_values": _IMAGE}))
    convolutions = {
        "conv_dim": [8, 8],
        "conv_kernel": [4, 4],
        "conv_stride": [2, 2],
        "num_conv_pos_embedding_groups": 2,
        "num_conv_pos_embeddings": 4,
        "feat_extract_norm": "layer",
    }
    sound = {"input_values": (2, 60)}
    found += [
        Architecture(name="hubert", model="HubertModel", kind="audio", changes=convolutions, inputs=sound),
        Architecture(name="wav2vec2", model="Wav2Vec2Model", kind="audio", changes=convolutions, inputs=sound),
        Architecture(name="data2vec-audio", model="Data2VecAudioModel", kind="audio", changes=convolutions, inputs=sound),
        Architecture(name="unispeech", model="UniSpeechModel", kind="audio", changes=convolutions, inputs=sound),
        Architecture(name="unispeech-sat", model="UniSpeechSatModel", kind="audio", changes=convolutions, inputs=sound),
        Architecture(
            name="audio-spectrogram-transformer",
            model="ASTModel",
            kind="audio",
            changes={"max_length": 24, "frequency_stride": 4, "time_stride": 4, "num_mel_bins": 16},
            inputs={"input_values": (2, 24, 16)},
        ),
        Architecture(
            name="qwen2_audio_encoder", model="Qwen2AudioEncoder", kind="audio", inputs={"input_features": (2, 8, 128)}
        ),
        Architecture(
            name="whisper",
            model="WhisperForConditionalGeneration",
            kind="audio2text",
            changes={"decoder_start_token_id": 3, "max_source_positions": 16},
            inputs={"input_features": (2, 8, 32)},
        ),
        Architecture(
            name="speech_to_text",
            model="Speech2TextForConditionalGeneration",
            kind="audio2text",
            changes={"decoder_start_token_id": 3, "input_feat_per_channel": 8, "conv_channels": 16},
            inputs={"input_features": (2, 32, 8)},
        ),
        Architecture(
            name="moonshine",
            model="MoonshineForConditionalGeneration",
            kind="audio2text",
            changes={"decoder_start_token_id": 3, "encoder_num_attention_heads": 4, "decoder_num_attention_heads": 4,
                     "encoder_num_key_value_heads": 4, "decoder_num_key_value_heads": 4,
                     "encoder_num_hidden_layers": 2, "decoder_num_hidden_layers": 2},
            inputs={"input_values": (2, 2000)},
        ),
    ]  # fmt: skip
    return found


def _tiny(name: str, **changes: Any) -> dict[str, Any]:
    return shrink(CONFIG_MAPPING[name], **changes).to_dict() | {"model_type": name}


def _multimodal() -> list[Architecture]:
    image = {"pixel_values": _IMAGE}
    llama, clip = _tiny("llama"), _tiny("clip_vision_model")
    siglip = _tiny("siglip_vision_model")
    llava = {"text_config": llama, "vision_config": clip, "image_token_index": 80, "image_token_id": 80}
    return [
        Architecture(
            name="llava",
            model="LlavaForConditionalGeneration",
            kind="multimodal",
            changes=llava | {"vision_feature_layer": -1, "image_seq_length": 4},
            inputs=image,
        ),
        Architecture(
            name="vipllava",
            model="VipLlavaForConditionalGeneration",
            kind="multimodal",
            changes=llava | {"vision_feature_layers": [-1], "image_seq_length": 4},
            inputs=image,
        ),
        Architecture(
            name="gemma3",
            model="Gemma3ForConditionalGeneration",
            kind="multimodal",
            changes={
                "text_config": _tiny("gemma3_text"),
                "vision_config": siglip | {"vision_use_head": False},
                "image_token_id": 80,
                "image_token_index": 80,
                "mm_tokens_per_image": 4,
                "boi_token_index": 81,
                "eoi_token_index": 82,
            },
            inputs=image,
        ),
        Architecture(
            name="paligemma",
            model="PaliGemmaForConditionalGeneration",
            kind="multimodal",
            changes={
                "text_config": _tiny("gemma"),
                "vision_config": siglip | {"vision_use_head": False, "projection_dim": 32},
                "projection_dim": 32,
                "image_token_id": 80,
                "image_token_index": 80,
            },
            inputs=image,
        ),
        Architecture(
            name="idefics3",
            model="Idefics3ForConditionalGeneration",
            kind="multimodal",
            changes={
                "text_config": llama,
                "vision_config": _tiny("idefics3_vision"),
                "image_token_id": 80,
                "scale_factor": 1,
            },
            inputs={"pixel_values": (2, 1, 3, 16, 16)},
        ),
        Architecture(
            name="smolvlm",
            model="SmolVLMForConditionalGeneration",
            kind="multimodal",
            changes={
                "text_config": llama,
                "vision_config": _tiny("smolvlm_vision"),
                "image_token_id": 80,
                "scale_factor": 1,
            },
            inputs={"pixel_values": (2, 1, 3, 16, 16)},
        ),
    ]


ARCHITECTURES: tuple[Architecture, ...] = (*_decoders(), *_encoders(), *_others(), *_multimodal())
"""Every architecture of the coverage test. All of them reach Transformers' attention interface."""


def build(architecture: Architecture, dtype: torch.dtype = torch.float32) -> torch.nn.Module:
    """A model with fixed weights that are large enough for every option to show in its output."""
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
