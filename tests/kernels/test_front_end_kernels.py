"""What the real front ends and the compiler's cache need of our kernels: whole words in PSUM, names, keys, a digest."""

import ast
import importlib
import sys
from pathlib import Path

import numpy as np
import pytest
from prefill_cases import check, problem, run

from nki_hf import lang
from nki_hf.backends.neuron_sources import PARAMETER, digest, source_files
from nki_hf.kernels.flash_prefill import finish, loads, row_statistics, stages
from nki_hf.kernels.flash_prefill import kernel as flash_prefill
from nki_hf.kernels.flash_prefill import steps as prefill_steps
from nki_hf.problem import Mask
from nki_hf.testing import attention_inputs


def words_of(region):
    """Which bytes of each 4-byte word of each partition's row the region touches: True for touched."""
    buffer, size = region.buffer, region.dtype.itemsize
    row = buffer.bytes_per_partition
    touched = np.zeros(buffer.shape[0] * row, bool)
    places = np.array([region.offset])
    for count, stride in zip(region.shape, region.strides, strict=True):
        places = (places[:, None] + np.arange(count) * stride).reshape(-1)
    for byte in range(size):
        touched[places * size + byte] = True
    return np.pad(touched.reshape(-1, row), ((0, 0), (0, -row % 4))).reshape(-1, 4)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize(("seqlen_q", "seqlen_kv"), [(1, 700), (3, 130), (129, 129), (255, 600), (64, 640)])
@pytest.mark.parametrize("chip", ["trn1", "trn2"])
def test_every_write_to_psum_is_of_whole_aligned_words(seqlen_q, seqlen_kv, dtype, chip):
    """neuronx-cc stops at a write to PSUM that is not made of aligned 4-byte words (field reports)."""
    case = problem(
        seqlen_q=seqlen_q, seqlen_kv=seqlen_kv, dtype=dtype, mask=Mask(ahead=1, q_offset=seqlen_kv - seqlen_q), num_heads_q=1
    )
    result, _ = run(attention_inputs(case), chip)
    writes = [region for event in result.events for region in event.writes if region.buffer.space == "psum"]
    assert {region.dtype.itemsize for region in writes} == {2, 4}
    for region in writes:
        words = words_of(region)
        assert (words.all(1) == words.any(1)).all()
    check(case, chip)


def test_a_re_loaded_kernel_module_has_a_name_that_is_an_identifier():
    name = "nki_hf.kernels.flash_prefill.kernel"
    loaded = lang.load(name, "simulator")
    assert loaded.flash_prefill.function.__module__ == loaded.__name__
    assert all(part.isidentifier() for part in loaded.__name__.split("."))
    assert loaded.__name__ != name
    assert sys.modules[loaded.__name__] is loaded


def test_the_digest_covers_the_kernel_and_what_it_reaches_and_changes_with_each(tmp_path, monkeypatch):
    package = tmp_path / "digested"
    (package / "parts").mkdir(parents=True)
    texts = {
        "__init__.py": "",
        "kernel.py": "from digested.parts import first\nfrom nki_hf.lang import nl\n",
        "parts/__init__.py": "",
        "parts/first.py": "from .second import f\n",
        "parts/second.py": "def f():\n    return 1\n",
        "apart.py": "x = 1\n",
    }
    for name, text in texts.items():
        (package / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    reached = {"kernel.py", "parts/__init__.py", "parts/first.py", "parts/second.py"}
    assert {str(file.relative_to(package)) for file in source_files("digested.kernel").values()} == reached
    before = digest.__wrapped__("digested.kernel")
    assert digest.__wrapped__("digested.kernel") == before
    for name in texts:
        (package / name).write_text(texts[name] + "# changed\n")
        assert (digest.__wrapped__("digested.kernel") != before) == (name in reached), name
        (package / name).write_text(texts[name])


def test_the_kernels_own_digest_covers_its_steps():
    assert {"nki_hf.kernels.flash_prefill.kernel", "nki_hf.kernels.flash_prefill.steps"} <= set(
        source_files("nki_hf.kernels.flash_prefill.kernel")
    )
    assert PARAMETER in flash_prefill.flash_prefill.function.__code__.co_varnames


def test_the_dictionaries_of_the_kernel_have_the_keys_of_the_table():
    """Keys that are read or written under each dictionary's name, in all modules of the kernel."""
    used = {name: set() for name in prefill_steps.KEYS}
    for module in (flash_prefill, loads, stages, finish, row_statistics, prefill_steps):
        for node in ast.walk(ast.parse(Path(module.__file__).read_text())):
            if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id in used:
                assert isinstance(node.slice, ast.Constant), ast.unparse(node)
                used[node.value.id].add(node.slice.value)
            written = isinstance(node, ast.Assign | ast.Return) and isinstance(node.value, ast.Dict)
            if written:
                names = [target.id for target in node.targets] if isinstance(node, ast.Assign) else ["section"]
                for name in set(names) & set(used):
                    used[name] |= {key.value for key in node.value.keys}
    assert {name: sorted(keys) for name, keys in used.items()} == {
        name: sorted(keys) for name, keys in prefill_steps.KEYS.items()
    }
