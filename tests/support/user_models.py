"""Models as users write them: source text for each way to attend and each way to lay out the files.

A way is a class body of an attention and the flags of its model; a layout is how the source becomes classes: one file, a
package, the main script, a notebook without any file, or a folder of remote code.
"""

import importlib
import json
import linecache
import sys
import types

import torch

__all__ = ["LAYOUTS", "WAYS", "deviation", "load", "outputs"]

_CONFIG = """
from transformers import PretrainedConfig


class UserConfig(PretrainedConfig):
    model_type = "user_{name}"

    def __init__(self, hidden_size=32, num_attention_heads=4, num_hidden_layers=2, vocab_size=60, **kwargs):
        self.hidden_size, self.num_attention_heads = hidden_size, num_attention_heads
        self.num_hidden_layers, self.vocab_size = num_hidden_layers, vocab_size
        super().__init__(**kwargs)
"""

_ATTENTION = """
import math

import torch
from torch import nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS


def softmax_attention(module, query, key, value, mask, scaling=None, dropout=0.0, **kwargs):
    scores = query @ key.transpose(2, 3) * scaling
    if mask is not None:
        scores = scores + mask
    return (scores.softmax(-1) @ value).transpose(1, 2).contiguous(), None


class {attention}(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.heads = config.num_attention_heads
        self.qkv = nn.Linear(config.hidden_size, 3 * config.hidden_size)
        self.out = nn.Linear(config.hidden_size, config.hidden_size)
        self.scale = (config.hidden_size // self.heads) ** -0.5
{causal}

    def forward(self, x, mask=None):
        shape = (*x.shape[:2], self.heads, -1)
        q, k, v = (part.view(shape).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
{attend}
        return self.out(y.reshape(x.shape))
"""

_MODEL = """
import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.masking_utils import create_causal_mask


class UserBlock(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.norm = nn.LayerNorm(config.hidden_size)
        self.attention = {attention}(config)

    def forward(self, x, mask):
        return x + self.attention(self.norm(x), mask)


class UserModel({base}):
    config_class = UserConfig
{flags}

    def __init__(self, config):
        super().__init__(config)
        self.embed = nn.Embedding(config.vocab_size, config.hidden_size)
        self.places = nn.Embedding(64, config.hidden_size)
        self.layers = nn.ModuleList([UserBlock(config) for _ in range(config.num_hidden_layers)])
        self.head = nn.Linear(config.hidden_size, config.vocab_size)
        self.post_init()

    def forward(self, input_ids, attention_mask=None, **kwargs):
        place = torch.arange(input_ids.shape[1], device=input_ids.device)[None]
        x = self.embed(input_ids) + self.places(place)
        mask = {mask}
        for layer in self.layers:
            x = layer(x, mask)
        return self.head(x)
"""

_ASK = """
        attend = {table}(self.config._attn_implementation, softmax_attention)
        y, _ = attend(self, q, k, v, mask, scaling=self.scale)
"""
_ADD = """
        scores = q @ k.transpose(2, 3) * self.scale
        if mask is not None:
            scores = scores + mask
        y = (torch.softmax(scores, -1) @ v).transpose(1, 2)
"""
_BUILDS = (
    "create_causal_mask(config=self.config, attention_mask=attention_mask, {embeds}=x, {cache}=None, "
    "position_ids=place{position})"
)
_OWN = "torch.full((x.shape[1], x.shape[1]), torch.finfo(x.dtype).min).triu(1)[None, None]"

WAYS = {
    # (attend, flags, what the model makes a mask of, base, module.is_causal, calls of the attention interface)
    "asks": (_ASK, "    _supports_sdpa = True", "builder", "PreTrainedModel", "True", True),
    "adds": (_ADD, "", "builder", "PreTrainedModel", None, False),
    "adds, flags of another model": (_ADD, "", "builder", "LlamaPreTrainedModel", None, False),
    "adds, flag of its own": (_ADD, "    _supports_sdpa = True", "builder", "PreTrainedModel", None, False),
    "declines sdpa": (_ASK, "    _supports_sdpa = False", "builder", "PreTrainedModel", "True", True),
    "says nothing of sdpa": (_ASK, "", "builder", "PreTrainedModel", None, True),
    "an encoder that says nothing": (_ASK, "", "none", "PreTrainedModel", None, True),
    "an encoder whose modules say causal": (_ASK, "", "none", "PreTrainedModel", "True", True),
    "torch's sdpa": (
        "\n        y = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=self.scale).transpose(1, 2)\n",
        "    _supports_sdpa = True",
        "builder",
        "PreTrainedModel",
        None,
        False,
    ),
    "never asks for a mask": (_ADD, "", "own", "PreTrainedModel", None, False),
}
"""How a model can attend."""

LAYOUTS = ("one file", "package", "main", "notebook", "remote code")


def sources(way, name, *, attention="UserAttention", together):
    """The texts of configuration, attention and model; `together`: they share one file."""
    from transformers import masking_utils

    attend, flags, mask, base, causal, _ = WAYS[way]
    code = masking_utils.create_causal_mask.__wrapped__ if hasattr(masking_utils.create_causal_mask, "__wrapped__") else None
    names = (code or masking_utils.create_causal_mask).__code__.co_varnames
    builder = _BUILDS.format(
        embeds="inputs_embeds" if "inputs_embeds" in names else "input_embeds",
        cache="cache" if "cache" in names else "past_key_values",
        position=", cache_position=place[0]" if "cache_position" in names else "",
    )
    table = "ALL_ATTENTION_FUNCTIONS.get_interface"
    if not hasattr(type(_table()), "get_interface"):  # before 5.0
        attend = attend.replace("{table}(self.config._attn_implementation, softmax_attention)", _OLD_TABLE)
    texts = [
        _CONFIG.format(name=name),
        _ATTENTION.format(
            attention=attention,
            attend=attend.replace("{table}", table).strip("\n"),
            causal=f"        self.is_causal = {causal}" if causal else "        # no word on causality",
        ),
        _MODEL.format(
            attention=attention,
            base=base,
            flags=flags or "    # no flags",
            mask={"builder": builder, "own": _OWN, "none": "None"}[mask],
        ),
    ]
    if base != "PreTrainedModel":
        texts[2] = f"from transformers.models.llama.modeling_llama import {base}\n{texts[2]}"
    if not together:
        texts[2] = f"from .configuration_user import UserConfig\nfrom .attention import {attention}\n{texts[2]}"
    return texts


_OLD_TABLE = (
    'softmax_attention if self.config._attn_implementation == "eager" '
    "else ALL_ATTENTION_FUNCTIONS[self.config._attn_implementation]"
)


def _table():
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    return ALL_ATTENTION_FUNCTIONS


def load(way, layout, folder, name, **options):
    """The module that holds `UserConfig` and `UserModel`.

    Args:
      way: a key of `WAYS`.
      layout: one of `LAYOUTS` but `main`, which runs in a process of its own.
      folder: an empty folder that is on `sys.path`.
      name: a name that no other module has.
      options: for `sources`.
    """
    together = layout in ("one file", "notebook")
    texts = sources(way, name, together=together, **options)
    if layout == "notebook":
        module = types.ModuleType(name)
        sys.modules[name] = module
        exec(compile("\n".join(texts), f"<cell of {name}>", "exec"), module.__dict__)
        linecache.clearcache()
        return module
    if layout == "one file":
        (folder / f"{name}.py").write_text("\n".join(texts))
        importlib.invalidate_caches()
        return importlib.import_module(name)
    package = folder / name
    package.mkdir()
    for file, text in zip(("configuration_user.py", "attention.py", "model.py"), texts, strict=True):
        (package / file).write_text(text)
    if layout == "package":
        (package / "__init__.py").write_text("from .model import UserConfig, UserModel\n")
        importlib.invalidate_caches()
        return importlib.import_module(name)
    from transformers import AutoConfig, AutoModel

    auto = {"AutoConfig": "configuration_user.UserConfig", "AutoModel": "model.UserModel"}
    (package / "config.json").write_text(json.dumps({"model_type": f"user_{name}", "auto_map": auto}))
    config = AutoConfig.from_pretrained(package, trust_remote_code=True)
    kind = type(AutoModel.from_config(config, trust_remote_code=True, attn_implementation="eager"))
    return types.SimpleNamespace(UserConfig=type(config), UserModel=kind)


def outputs(module, implementation, *, seed=0):
    """Logits without a mask and with each kind of padding, at the rows that are not padding; weights are large."""
    torch.manual_seed(seed)
    model = module.UserModel._from_config(module.UserConfig(), attn_implementation="eager").eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.normal_(std=0.3)
    model.config._attn_implementation = implementation
    ids = torch.randint(0, 60, (2, 9))
    found = {}
    for padding in ("none", "left", "right"):
        mask = torch.ones_like(ids)
        if padding != "none":
            mask[0, :3] = 0
            mask = mask if padding == "left" else mask.flip(1)
        with torch.no_grad():
            out = model(ids, attention_mask=None if padding == "none" else mask)
        found[padding] = out[mask.bool()]
    return found


def deviation(found, expected):
    """Largest difference of any of the outputs."""
    return max(float((found[name] - expected[name]).abs().max()) for name in expected)
