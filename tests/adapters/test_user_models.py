"""Models that users wrote: equal to eager whatever files their classes live in and however they attend."""

import itertools
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import user_models
from transformers import BloomConfig, BloomForCausalLM, LlamaConfig, LlamaModel, PretrainedConfig, PreTrainedModel
from user_models import WAYS, deviation, load, outputs

import nki_hf
from nki_hf.adapters import model_classes
from nki_hf.adapters.transformers import nki_attention

TOLERANCE = 1e-4
"""Of outputs of about 10 in float32; a mask that is added as a bool, or left out, costs more than 0.1."""
_numbers = itertools.count()


@pytest.fixture(scope="module", autouse=True)
def _remote_cache(tmp_path_factory):
    """One cache of remote code for all tests: the package of remote code stays bound to its first folder."""
    import transformers.dynamic_module_utils as remote

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(remote, "HF_MODULES_CACHE", str(tmp_path_factory.mktemp("remote")))
        yield


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty folder of modules."""
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def _check(module, way):
    expected = outputs(module, "eager")
    nki_hf.explain(reset=True)
    with nki_hf.using(strict=True):
        found = outputs(module, "nki")
    assert deviation(found, expected) <= TOLERANCE
    assert (nki_hf.explain().calls > 0) is WAYS[way][-1]


@pytest.mark.parametrize("layout", ["one file", "package", "notebook", "remote code"])
@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_attend_equals_eager_in_every_layout(way, layout, folder):
    _check(load(way, layout, folder, f"user_model_{next(_numbers)}"), way)


_MAIN = """
import sys
sys.path[:0] = [{tests!r}, {root!r}]
import nki_hf
from user_models import deviation, outputs
me = sys.modules["__main__"]
nki_hf.explain(reset=True)
print(deviation(outputs(me, "nki"), outputs(me, "eager")), nki_hf.explain().calls)
"""


def test_every_way_to_attend_equals_eager_in_the_main_script(tmp_path):
    here = Path(__file__).parents[2]
    tail = _MAIN.format(tests=str(here / "tests" / "support"), root=str(here))
    scripts = []
    for number, way in enumerate(WAYS):
        scripts.append(tmp_path / f"script_{number}.py")
        scripts[-1].write_text("\n".join(user_models.sources(way, "main", together=True)) + tail)
    each_as_main = "import runpy, sys\nfor path in sys.argv[1:]: runpy.run_path(path, run_name='__main__')"
    command = [sys.executable, "-c", each_as_main, *map(str, scripts)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()[-len(WAYS) :]
    for way, line in zip(WAYS, lines, strict=True):
        off, calls = line.split()
        assert float(off) <= TOLERANCE, way
        assert (int(calls) > 0) is WAYS[way][-1], way


@pytest.mark.parametrize("name", ["UserAttention", "Mixer"])
def test_what_a_class_is_called_does_not_matter(name, folder):
    _check(load("adds, flags of another model", "package", folder, f"user_model_{next(_numbers)}", attention=name), "adds")


def test_a_model_that_can_be_run_as_sdpa_needs_no_dense_causal_mask(folder):
    module = load("asks", "one file", folder, f"user_model_{next(_numbers)}")
    assert model_classes.routing(module.UserConfig) == (True, True)
    assert model_classes.model_like_sdpa(module.UserModel(module.UserConfig()))


class SubclassedBloomConfig(BloomConfig):
    """A configuration that adds nothing."""


@pytest.mark.parametrize("config", [BloomConfig, SubclassedBloomConfig])
def test_a_subclassed_configuration_of_an_eager_only_model(config):
    torch.manual_seed(0)
    model = BloomForCausalLM(config(vocab_size=60, hidden_size=32, n_layer=2, n_head=4)).eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.normal_(std=0.5)
    ids = torch.randint(0, 60, (2, 9))
    mask = torch.ones_like(ids)
    mask[0, :3] = 0
    found = {}
    for implementation in ("eager", "nki"):
        model.config._attn_implementation = implementation
        with torch.no_grad():
            found[implementation] = model(ids).logits, model(ids, attention_mask=mask).logits[mask.bool()]
    for out, expected in zip(found["nki"], found["eager"], strict=True):
        torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-4)


class PlainNet(torch.nn.Module):
    """No model of Transformers, with a configuration that belongs to one: adds the mask to its scores."""

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.embed = torch.nn.Embedding(60, 32)

    def forward(self, ids):
        """Scores of ids, softened, times their embedding."""
        from transformers.masking_utils import create_causal_mask

        x = self.embed(ids)
        mask = create_causal_mask(self.config, x, None, None)
        scores = (x @ x.transpose(1, 2))[:, None]
        scores = scores if mask is None else scores + mask
        return torch.softmax(scores, -1) @ x[:, None]


def test_a_plain_module_with_the_configuration_of_a_model_gets_eagers_mask():
    config = LlamaConfig(hidden_size=32, num_attention_heads=4)
    model_classes.routing(
        type(
            LlamaModel(
                LlamaConfig(vocab_size=9, hidden_size=8, intermediate_size=8, num_attention_heads=2, num_hidden_layers=1)
            ).config
        )
    )
    torch.manual_seed(0)
    net = PlainNet(config)
    ids = torch.randint(0, 60, (2, 7))
    config._attn_implementation = "eager"
    expected = net(ids)
    config._attn_implementation = "nki"
    torch.testing.assert_close(net(ids), expected)


class EagerOnlyAttention(torch.nn.Module):
    """What a user puts into a built model: adds the mask."""

    def forward(self, hidden_states, attention_mask=None, **kwargs):
        """Attention of the states over themselves."""
        scores = hidden_states @ hidden_states.transpose(1, 2)
        if attention_mask is not None:
            scores = scores[:, None] + attention_mask
            return (scores.softmax(-1) @ hidden_states[:, None])[:, 0], None
        return scores.softmax(-1) @ hidden_states, None


def test_an_attention_exchanged_after_building_gets_eagers_mask():
    torch.manual_seed(0)
    sizes = {"vocab_size": 60, "hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2}
    model = LlamaModel(LlamaConfig(**sizes)).eval()
    ids = torch.randint(0, 60, (2, 7))
    model.config._attn_implementation = "nki"
    model(ids)  # what was known before the exchange must not count after it
    model.layers[1].self_attn = EagerOnlyAttention()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.normal_(std=0.5)
        found = model(ids).last_hidden_state
        model.config._attn_implementation = "eager"
        expected = model(ids).last_hidden_state
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


class _NoSdpaConfig(PretrainedConfig):
    """Of `_NoSdpa`."""


class _NoSdpa(PreTrainedModel):
    config_class = _NoSdpaConfig


def test_no_mask_and_a_word_of_causality_from_the_caller_is_refused_where_eager_would_ignore_it():
    layer = torch.nn.Module()
    layer.config = _NoSdpaConfig()
    q = torch.randn(1, 2, 5, 8)
    with pytest.raises(nki_hf.UnsupportedProblem, match=r"is_causal=True for Module.*_supports_sdpa"):
        nki_attention(layer, q, q, q, None, is_causal=True)
    out, _ = nki_attention(layer, q, q, q, None)
    expected = torch.softmax(q @ q.transpose(2, 3) * 8**-0.5, -1) @ q
    torch.testing.assert_close(out, expected.transpose(1, 2), rtol=1e-5, atol=1e-5)
