"""Any Transformers configuration as a tiny one: the same architecture with small sizes and nothing random."""

import inspect

SIZES = {
    "hidden_size": 32,
    "d_model": 32,
    "n_embd": 32,
    "embed_dim": 32,
    "hidden_dim": 32,
    "dim": 32,
    "projection_dim": 16,
    "intermediate_size": 48,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
    "d_ff": 48,
    "n_inner": 48,
    "ffn_dim": 48,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "vocab_size": 99,
    "num_hidden_layers": 2,
    "n_layer": 2,
    "n_layers": 2,
    "num_layers": 2,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "num_decoder_layers": 2,
    "num_encoder_layers": 2,
    "num_attention_heads": 4,
    "n_head": 4,
    "n_heads": 4,
    "num_heads": 4,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "d_kv": 8,
    "kv_lora_rank": 8,
    "q_lora_rank": 12,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 8,
    "v_head_dim": 6,
    "num_experts": 4,
    "n_routed_experts": 4,
    "num_local_experts": 4,
    "n_group": 1,
    "topk_group": 1,
    "num_experts_per_tok": 2,
    "moe_k": 2,
    "max_position_embeddings": 64,
    "n_positions": 64,
    "n_ctx": 64,
    "max_source_positions": 64,
    "max_target_positions": 64,
    "image_size": 16,
    "patch_size": 8,
    "num_mel_bins": 8,
    "sliding_window": 4,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
"""Sizes by the names that configurations use; a configuration gets those that it has."""

NO_RANDOMNESS = ("dropout", "pdrop", "drop_path", "drop_rate", "layerdrop", "mask_time_prob", "jitter")


def shrink(config_class, **changes):
    """A tiny configuration of a class; `changes` override the table, and may name nested configurations by dicts."""
    known = _parameters(config_class)
    options = {name: value for name, value in SIZES.items() if name in known and _sized(known[name])}
    options |= {name: 0.0 for name in known if any(word in name for word in NO_RANDOMNESS) and isinstance(known[name], float)}
    for name, sub in (getattr(config_class, "sub_configs", None) or {}).items():
        if inspect.isclass(sub) and _parameters(sub):
            options[name] = shrink(sub, **changes.pop(name, {})).to_dict()
    return config_class(**{**options, **changes})


def _sized(default):
    return (
        default is None
        or (isinstance(default, int) and not isinstance(default, bool))
        or isinstance(default, inspect.Parameter)
    )


def _parameters(config_class):
    found = {}
    for each in reversed(config_class.__mro__):
        for name in getattr(each, "__annotations__", {}):
            found[name] = getattr(config_class, name, None)
    return found
