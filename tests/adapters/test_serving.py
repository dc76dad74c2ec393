"""Continuous batching: the name that Transformers takes, which versions take it, and its tokens."""

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import transformers
from typer.testing import CliRunner

import nki_hf
from nki_hf.adapters.hub_kernel import HUB_NAME, VARIABLE, Serving, entry, local_problem, serving, set_local_kernels
from nki_hf.adapters.paged import nki_paged_attention
from nki_hf.adapters.transformers import nki_attention
from nki_hf.cli import app

ROOT = Path(__file__).parents[2]
STAND_IN = ROOT / "tests" / "fakes" / "kernels_loader"


def test_our_folder_is_added_and_a_users_own_is_kept():
    environ = {}
    set_local_kernels(environ)
    set_local_kernels(environ)
    assert environ == {VARIABLE: entry()}
    other = {VARIABLE: "a/b=/c"}
    set_local_kernels(other)
    assert other[VARIABLE].split(":") == ["a/b=/c", entry()]
    own = {VARIABLE: f"{HUB_NAME}=/mine:a/b=/c"}
    set_local_kernels(own)
    assert own[VARIABLE] == f"{HUB_NAME}=/mine:a/b=/c"


OTHER = "kernels-community/other"
LINES = {  # what the variable held before, and what it holds after the line was evaluated, once or twice
    "nothing": (None, HUB_NAME, entry()),
    "empty": ("", HUB_NAME, entry()),
    "another kernel": ("a/b=/c", HUB_NAME, f"a/b=/c:{entry()}"),
    "another kernel and a colon": ("a/b=/c:", HUB_NAME, f"a/b=/c:{entry()}"),
    "the user's own": (f"{HUB_NAME}=/mine", HUB_NAME, f"{HUB_NAME}=/mine"),
    "the user's own behind another": (f"a/b=/c:{HUB_NAME}=/mine:", HUB_NAME, f"a/b=/c:{HUB_NAME}=/mine"),
    "a name that ends alike": (f"x{HUB_NAME}=/mine", HUB_NAME, f"x{HUB_NAME}=/mine:{entry()}"),
    "another name": (entry(), OTHER, f"{entry()}:{entry(OTHER)}"),
}


@pytest.mark.parametrize("exported", [True, False])
@pytest.mark.parametrize("case", LINES)
def test_the_line_for_the_shell_keeps_what_there_is_and_can_be_repeated(case, exported):
    before, name, after = LINES[case]
    words = ["serving", "--export", *(() if name == HUB_NAME else ("--name", name))]
    line = CliRunner().invoke(app, words, env={VARIABLE: before if exported else None}).stdout
    given = "" if before is None else f"{VARIABLE}='{before}'; {f'export {VARIABLE}; ' if exported else ''}"
    script = f"set -u; {given}{line}{line}sh -c 'printf %s \"${VARIABLE}\"'"
    assert (
        subprocess.run(["sh", "-c", script], env={"PATH": os.environ["PATH"]}, capture_output=True, text=True).stdout == after
    )


def test_a_line_that_could_not_work_is_refused():
    assert CliRunner().invoke(app, ["serving", "--export", "--name", "a/b='; ls"]).exit_code == 2
    found = CliRunner().invoke(app, ["serving", "--export"], env={VARIABLE: "foo"})
    assert found.exit_code == 2
    assert "'foo'" in found.output


BROKEN = {
    "foo": "the entry 'foo'",
    f"a/b=/c::{entry()}": "the entry ''",
    f"{entry()}:": "the entry ''",
    f"{HUB_NAME}=/nowhere": "'/nowhere', which is no folder",
    f"{entry()}:{HUB_NAME}=/nowhere": "'/nowhere', which is no folder",  # of two entries the last counts
    f"{HUB_NAME}=": "has no entry",
    "a/b=/c": "has no entry",
    "": "has no entry",
}


@pytest.mark.parametrize("value", BROKEN)
def test_a_variable_that_leads_nowhere_is_no_yes(value):
    versions = {"transformers": "5.24.0", "kernels": "0.18.2"}
    found = serving(versions.get, lambda _: [NEEDS], {VARIABLE: value})
    assert found.name is None
    assert BROKEN[value] in found.problem
    assert serving(versions.get, lambda _: [NEEDS], {VARIABLE: entry()}).name == HUB_NAME


def test_a_path_with_a_colon_is_refused_by_name_and_one_with_an_equals_sign_is_not(monkeypatch):
    for folder, told in (("/a:b", "colon"), ("/a=b", "no folder of a kernel")):
        monkeypatch.setattr("nki_hf.adapters.hub_kernel.__file__", f"{folder}/adapters/hub_kernel.py")
        environ = {}
        set_local_kernels(environ)
        assert told in local_problem(environ)
        assert bool(environ) == (folder == "/a=b")


def test_the_folder_is_a_kernel_build():
    folder = Path(entry().partition("=")[2])
    metadata = json.loads((folder / "metadata.json").read_text())
    assert {"name", "id", "version", "license", "python-depends", "backend"} <= set(metadata)
    assert (folder / "__init__.py").is_file()


NEEDS = 'kernels<0.19,>=0.18.2; extra == "kernels"'
CASES = {
    "none": ({}, None, "transformers is missing"),
    "old": ({"transformers": "4.57.6"}, None, "5.2 on"),
    "prefixed": ({"transformers": "5.18.0"}, "nki", ""),
    "no loader": ({"transformers": "5.24.0"}, None, "kernels>=0.18.2,<0.19"),
    "older loader": ({"transformers": "5.24.0", "kernels": "0.17.2"}, None, "kernels=0.17.2"),
    "newer loader": ({"transformers": "5.24.0", "kernels": "0.19.0"}, None, "kernels=0.19.0"),
    "fitting": ({"transformers": "5.24.0", "kernels": "0.18.2"}, HUB_NAME, ""),
}


@pytest.mark.parametrize("case", CASES)
def test_versions_decide_the_name_and_a_refusal_names_the_floor(case):
    versions, name, words = CASES[case]
    found = serving(versions.get, lambda _: ["numpy>=2", NEEDS], {VARIABLE: entry()})
    assert found.name == name
    assert words in found.problem
    assert bool(found.problem) == (name is None)


LINE = "pip install 'transformers[serving]>=5.20,<5.23' 'kernels>=0.17.2,<0.18'"


@pytest.mark.parametrize("found", [None, "0.17.2"])
def test_a_loader_that_no_index_had_is_told_with_the_way_out(found):
    versions = {"transformers": "5.24.0", "kernels": found}
    problem = serving(versions.get, lambda _: [NEEDS], {VARIABLE: entry()}).problem
    assert 'pip install "kernels>=0.18.2,<0.19"' in problem
    assert "not published when this release" in problem
    assert problem.endswith(LINE)


def test_a_loader_that_an_index_has_is_told_alone_and_nothing_at_all_gets_the_line():
    needs = ['kernels<0.18,>=0.17.2; extra == "kernels"']
    problem = serving({"transformers": "5.22.0"}.get, lambda _: needs, {VARIABLE: entry()}).problem
    assert problem.endswith('pip install "kernels>=0.17.2,<0.18".')
    assert "published" not in problem
    assert LINE in serving({}.get).problem


def test_the_line_is_on_the_page_and_the_extra_asks_for_the_same():
    assert f"    {LINE}\n" in (ROOT / "docs" / "serving.md").read_text()
    extra = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["serving"]
    assert set(re.findall(r"'(.*?)'", LINE)) <= set(extra)
    # what these Transformers' own `serving` extra and `is_serve_available` ask for
    assert {"fastapi", "uvicorn", "openai"} <= {re.match(r"[\w-]+", each).group() for each in extra}


def test_a_missing_server_is_noted(monkeypatch):
    monkeypatch.setattr("nki_hf.tools.serving.serving", lambda: Serving(name=HUB_NAME))
    monkeypatch.setattr("nki_hf.tools.serving._SERVER", ("json", "no_such_package"))
    told = " ".join(CliRunner().invoke(app, ["serving"]).output.split())
    assert "the server needs no_such_package too: pip install 'transformers[serving]'" in told


def test_the_plain_name_refuses_a_paged_cache_instead_of_ignoring_it():
    q = torch.zeros(1, 2, 3, 8)
    module = SimpleNamespace(is_causal=True, training=False, config=None)
    with pytest.raises(nki_hf.UnsupportedProblem, match="cache"):
        nki_attention(module, q, q, q, None, cache=object(), read_index=[], write_index=[])


def test_a_release_that_prefixes_names_gets_the_same_attention_and_a_written_cache():
    class Cache:
        def __init__(self):
            draw = torch.Generator().manual_seed(1)
            self.keys, self.values = torch.randn(2, 12, 2, 16, generator=draw)

        def update(self, *, key_states, value_states, layer_idx, read_index, write_index):
            for store, new in ((self.keys, key_states), (self.values, value_states)):
                store[write_index] = new[0].transpose(0, 1)
            return self.keys[read_index], self.values[read_index]

    from varlen_reference import packed, starts

    cache, draw = Cache(), torch.Generator().manual_seed(0)
    q, k, v = torch.randn(1, 4, 3, 16, generator=draw), *torch.randn(2, 1, 2, 3, 16, generator=draw)
    write, read = torch.tensor([4, 8, 9]), torch.tensor([1, 0, 4, 7, 8, 9])  # lengths 3 and 3, new: one token and two
    module = SimpleNamespace(layer_idx=0, scaling=0.25, sliding_window=None, is_causal=True, training=False)
    lengths = {"full_attention": starts([3, 3])}
    out, _ = nki_paged_attention(
        module,
        q,
        k,
        v,
        None,
        cache=cache,
        cu_seq_lens_q=starts([1, 2]),
        cu_seq_lens_k=lengths,
        read_index=read,
        write_index=write,
        block_table=None,
    )
    expected, _ = packed(q[0].transpose(0, 1), cache.keys[read], cache.values[read], [1, 2], [3, 3], causal=True, scale=0.25)
    torch.testing.assert_close(out.double(), expected, rtol=0, atol=1e-6)
    assert torch.equal(cache.keys[write], k[0].transpose(0, 1))


PROGRAM = """
import sys
{imports}
from transformers import AttentionInterface, ContinuousBatchingConfig, GenerationConfig
sys.path.insert(0, {support!r})
from tiny import tiny_qwen3
import torch
functions = dict(AttentionInterface().items())
model = tiny_qwen3(max_position_embeddings=512)
prompts = [torch.randint(1, 64, (n,), generator=torch.Generator().manual_seed(n)).tolist() for n in (1, 30, 150)]
found = []
for name in ("sdpa", {name!r}, "sdpa"):
    model.set_attn_implementation(name)
    outputs = model.generate_batch(
        inputs=prompts, generation_config=GenerationConfig(max_new_tokens=4, do_sample=False, eos_token_id=-1, pad_token_id=0),
        continuous_batching_config=ContinuousBatchingConfig(num_blocks=16, max_batch_tokens=64),
    )
    found.append(sorted(tuple(each.generated_tokens) for each in outputs.values()))
assert found[0] == found[1] == found[2], found
assert len(found[0][0]) == 4
assert all(AttentionInterface()[name] is function for name, function in functions.items())
report = nki_hf.explain()
assert report.calls and not report.fallbacks, str(report)
print("same tokens")
"""


# The stand-in is of the version that these releases ask for.
NEWEST = pytest.mark.skipif(
    not (5, 23) <= tuple(map(int, transformers.__version__.split(".")[:2])) <= (5, 24),
    reason=f"the stand-in's kernels 0.18.2 is what transformers 5.23 and 5.24 ask for, not {transformers.__version__}",
)


@NEWEST
@pytest.mark.parametrize("imports", ["import nki_hf, transformers", "import transformers.modeling_utils, nki_hf"])
def test_generate_batch_with_the_loader_of_the_needed_version(imports):
    source = PROGRAM.format(imports=imports, support=str(ROOT / "tests" / "support"), name=HUB_NAME)
    environ = {**os.environ, "PYTHONPATH": f"{STAND_IN}{os.pathsep}{ROOT}", "HF_HUB_OFFLINE": "1"}
    environ.pop(VARIABLE, None)
    run = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, env=environ)
    assert run.stdout.endswith("same tokens\n"), run.stderr


DISTURBED = """
import sys, threading, time
import nki_hf
from transformers import ContinuousBatchingConfig, GenerationConfig
sys.path.insert(0, {support!r})
from tiny import tiny_qwen3
import torch
model = tiny_qwen3(max_position_embeddings=64)
def draw(n): return torch.randint(1, 64, (n,), generator=torch.Generator().manual_seed(n)).tolist()
prompts = {{f"r{{n}}": draw(n) for n in (3, 20, 50, 9)}}
def answers(name, disturbed):
    model.set_attn_implementation(name)
    manager = model.init_continuous_batching(
        generation_config=GenerationConfig(max_new_tokens=4, do_sample=False, eos_token_id=-1, pad_token_id=0),
        continuous_batching_config=ContinuousBatchingConfig(num_blocks=32, page_size=32, max_batch_tokens=64, max_queue_size=2),
    )
    manager.start()
    if disturbed:
        manager.add_request(draw(40), request_id="leaves", max_new_tokens=60)
        time.sleep(0.2)
        manager.cancel_request("leaves")
        manager.add_request(draw(150), request_id="beyond the model's positions", max_new_tokens=4)
    def send(key): manager.add_request(prompts[key], request_id=key, max_new_tokens=4)
    threads = [threading.Thread(target=send, args=(key,)) for key in prompts]
    for thread in threads: thread.start()  # more at once than the queue holds
    found = {{}}
    while len(found) < len(prompts):
        output = manager.get_result(timeout=1)
        assert manager.is_running()
        if output is not None and output.request_id in prompts: found[output.request_id] = output.generated_tokens
    manager.stop(block=True)
    return found
expected = answers("sdpa", False)
assert all(len(tokens) == 4 for tokens in expected.values())
assert answers({name!r}, True) == expected
assert not nki_hf.explain().fallbacks
print("same tokens")
"""


@NEWEST
@pytest.mark.slow
def test_clients_that_leave_ask_for_much_or_crowd_change_nothing_for_others():
    source = DISTURBED.format(support=str(ROOT / "tests" / "support"), name=HUB_NAME)
    environ = {**os.environ, "PYTHONPATH": f"{STAND_IN}{os.pathsep}{ROOT}", "HF_HUB_OFFLINE": "1"}
    run = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, env=environ)
    assert run.stdout.endswith("same tokens\n"), run.stderr
