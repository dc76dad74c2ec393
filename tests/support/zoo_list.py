"""The architectures of the coverage test: each one's class, what its tiny configuration changes, and its kind."""

from dataclasses import dataclass, field
from typing import Any

import transformers
from shrink import shrink
from transformers import CONFIG_MAPPING

__all__ = ["ARCHITECTURES", "Architecture"]

_IMAGE = (2, 3, 16, 16)
_MLA = {"num_key_value_heads": 4, "head_dim": 4}  # latent attention: as many kv heads as query heads, head_dim of the rope part


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


def _decoders() -> list[Architecture]:
    plain = """
        afmoe apertus arcee aria_text bart bigbird_pegasus biogpt bitnet blenderbot blenderbot-small cohere cohere2
        cohere2_moe ctrl cwm deepseek_v4 diffllama doge ernie4_5 ernie4_5_moe exaone exaone4 exaone_moe flex_olmo
        flint gemma gemma2 gemma3_text glm glm4 glm4_moe gpt2 gpt_bigcode gpt_neox gpt_oss granite granite_swa granitemoe
        granitemoe_swa granitemoeshared helium hunyuan_v1_dense hunyuan_v1_moe hy_v3 hy_v4 hyperclovax internlm3 jais2
        inkling_text jetmoe laguna lara_mini lfm2 llama llama4_text mbart
        mimo_v2_flash minimax minimax_m2 minimax_m3_vl_text ministral ministral3 mistral mixtral
        modernbert-decoder nanochat nemotron olmo olmo2 olmo3 olmoe opt pegasus persimmon phi phi3 phimoe plbart qwen2
        qwen2_moe qwen3 qwen3_moe sarvam_moe seed_oss smollm3 solar_open stablelm starcoder2 vaultgemma
    """.split()
    latent = ["axk1", "axk2", "deepseek_v2", "deepseek_v3", "deepseek_v32", "glm4_moe_lite", "glm_moe_dsa", "minicpm3", "youtu"]
    special = {
        "deepseek_v4": {"num_key_value_heads": 1},
        "gemma2": {"attn_logit_softcapping": 5.0, "query_pre_attn_scalar": 3},
        "vaultgemma": {"attn_logit_softcapping": 5.0},
        "llama4_text": {
            "attention_chunk_size": 4,
            "interleave_moe_layer_step": 2,
            "intermediate_size_mlp": 48,
            "layer_types": ["chunked_attention", "full_attention"],
            "no_rope_layers": [1, 0],
        },
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
        evolla kosmos-2.5 markuplm modernbert muse_glimmer_text nomic_bert openai_privacy_filter qwen3_vl_text roberta
        roberta-prelayernorm splinter xlm-roberta xlm-roberta-xl
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
    frames = {"pixel_values": (2, 2, 3, 16, 16)}
    found += [
        Architecture(name="videomae", model="VideoMAEModel", kind="vision", changes={"num_frames": 2}, inputs=frames),
        Architecture(
            name="vivit",
            model="VivitModel",
            kind="vision",
            changes={"num_frames": 2, "tubelet_size": [2, 8, 8]},
            inputs=frames,
        ),
    ]
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
            changes={
                "decoder_start_token_id": 3,
                "encoder_num_attention_heads": 4,
                "decoder_num_attention_heads": 4,
                "encoder_num_key_value_heads": 4,
                "decoder_num_key_value_heads": 4,
                "encoder_num_hidden_layers": 2,
                "decoder_num_hidden_layers": 2,
            },
            inputs={"input_values": (2, 2000)},
        ),
    ]
    return found


def _tiny(name: str, **changes: Any) -> dict[str, Any]:
    return shrink(CONFIG_MAPPING[name], **changes).to_dict() | {"model_type": name}


def _multimodal() -> list[Architecture]:
    image = {"pixel_values": _IMAGE}
    llama, clip = _tiny("llama"), _tiny("clip_vision_model")
    siglip = _tiny("siglip_vision_model")
    llava = {"text_config": llama, "vision_config": clip, "image_token_index": 80, "image_token_id": 80}
    mrope = {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 10000.0}
    patches = {"depth": 1, "hidden_size": 32, "num_heads": 4}
    text_only = [
        Architecture(
            name="qwen2_vl",
            model="Qwen2VLForConditionalGeneration",
            kind="decoder",
            changes={
                "text_config": _tiny("qwen2_vl_text", rope_parameters=mrope),
                "vision_config": patches | {"embed_dim": 32, "mlp_ratio": 2},
            },
        ),
        Architecture(
            name="qwen2_5_vl",
            model="Qwen2_5_VLForConditionalGeneration",
            kind="decoder",
            changes={
                "text_config": _tiny("qwen2_5_vl_text", rope_parameters=mrope),
                "vision_config": patches | {"intermediate_size": 48, "out_hidden_size": 32},
            },
        ),
        Architecture(
            name="mistral3",
            model="Mistral3ForConditionalGeneration",
            kind="decoder",
            changes={"text_config": _tiny("mistral"), "vision_config": _tiny("pixtral")},
        ),
        Architecture(
            name="internvl",
            model="InternVLForConditionalGeneration",
            kind="decoder",
            changes={"text_config": llama, "vision_config": _tiny("internvl_vision")},
        ),
        Architecture(
            name="got_ocr2",
            model="GotOcr2ForConditionalGeneration",
            kind="decoder",
            changes={"text_config": _tiny("qwen2")},
        ),
        Architecture(name="mllama_text_model", model="MllamaForCausalLM", kind="decoder"),
    ]
    return [
        *text_only,
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
