"""Importing nki_hf makes "nki" known to Transformers, whichever comes first."""

import subprocess
import sys
from pathlib import Path

import pytest
from tiny import logits, tiny_qwen3, token_ids, worst

import nki_hf

ROOT = Path(__file__).parents[2]

_BOTH = """
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS as attention
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS as masks
print("nki" in attention, "nki" in masks)
"""


def _run(code):
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.strip()


@pytest.mark.parametrize(
    "first", ["import nki_hf, transformers", "import transformers; transformers.PreTrainedModel; import nki_hf"]
)
def test_both_tables_hold_nki_whichever_is_imported_first(first):
    assert _run(f"{first}\n{_BOTH}") == "True True"


def test_register_is_idempotent():
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    nki_hf.register()
    before = ALL_ATTENTION_FUNCTIONS["nki"], ALL_MASK_ATTENTION_FUNCTIONS["nki"]
    nki_hf.register()
    assert (ALL_ATTENTION_FUNCTIONS["nki"], ALL_MASK_ATTENTION_FUNCTIONS["nki"]) == before


_TWICE = """
import sys
sys.path[:0] = [{root!r} + "/tests/support", {root!r}]
import torch
import nki_hf
from tiny import logits, tiny_qwen3, token_ids, worst
model, ids = tiny_qwen3(), token_ids()
expected = logits(model, "eager", ids)
first, attention = nki_hf, nki_hf.attention
assert worst(logits(model, "nki", ids), expected) < 1e-5
compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
compiled(ids)
for name in [name for name in sys.modules if name.partition(".")[0] == "nki_hf"]:
    del sys.modules[name]
import nki_hf
assert nki_hf is not first
assert nki_hf.attention is not attention
nki_hf.configure(strict=True)
nki_hf.explain(reset=True)
assert worst(logits(model, "nki", ids), expected) < 1e-5
assert nki_hf.explain().calls == 2
model.train()(ids, labels=ids, use_cache=False).loss.backward()
assert worst(compiled(ids).logits.detach(), expected) < 1e-5
# The op calls the new code, whoever calls the op.
from nki_hf.adapters import torch_op
seen, run = [], torch_op._run_kernel
torch_op._run_kernel = lambda *given: (seen.append(1), run(*given))[1]
q, k, v = torch.randn(3, 1, 2, 5, 16, requires_grad=True)
torch.testing.assert_close(attention(q, k, v), nki_hf.attention(q, k, v))
assert len(seen) == 2
print("same results")
"""


def test_the_package_can_be_dropped_and_imported_again():
    assert _run(_TWICE.format(root=str(ROOT))) == "same results"


def test_another_versions_op_in_the_same_process_says_so():
    code = """
import sys
import nki_hf.adapters.torch_op, torch
torch.ops.nki_hf.code.schema = "attention(Tensor q) -> Tensor"
del sys.modules["nki_hf.adapters.torch_op"]
try:
    import nki_hf.adapters.torch_op
except ImportError as error:
    print(error)
"""
    assert "another version of nki_hf, whose op differs: restart it" in _run(code)


def test_without_transformers_the_message_names_the_extra():
    code = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split('.')[0] in ('torch', 'transformers'):
            raise ImportError(f'{name} is blocked')
sys.meta_path.insert(0, Blocked())
import importlib.metadata as metadata
def missing(name):
    raise metadata.PackageNotFoundError(name)
metadata.version = missing
import nki_hf
try:
    nki_hf.register()
except nki_hf.BackendUnavailable as error:
    print(error)
"""
    assert 'pip install "nki_hf[hf]"' in _run(code)


def test_the_config_switch_works_after_building_a_model():
    model, ids = tiny_qwen3(), token_ids()
    expected = logits(model, "eager", ids)
    nki_hf.explain(reset=True)
    model.config._attn_implementation = "nki"
    assert worst(model(ids).logits.detach(), expected) <= 1e-4
    assert nki_hf.explain().calls == 2


def test_the_config_switch_works_before_building_a_model():
    from transformers import Qwen3ForCausalLM

    reference, ids = tiny_qwen3(), token_ids()
    config = type(reference.config).from_dict(reference.config.to_dict())
    config._attn_implementation = "nki"
    model = Qwen3ForCausalLM(config).eval()
    model.load_state_dict(reference.state_dict())
    nki_hf.explain(reset=True)
    assert worst(model(ids).logits.detach(), logits(reference, "eager", ids)) <= 1e-4
    assert nki_hf.explain().calls == 2


def test_a_model_built_by_name_routes_through_nki():
    from transformers import AutoModelForCausalLM

    config = tiny_qwen3().config
    model = AutoModelForCausalLM.from_config(config, attn_implementation="nki")
    assert model.config._attn_implementation == "nki"
