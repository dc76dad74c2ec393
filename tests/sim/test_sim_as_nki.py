"""The simulator under the name `nki`: every module that public kernels import, restored after the block."""

import importlib
import sys
import threading
import types
from dataclasses import dataclass

import numpy as np
import pytest

from nki_hf import sim
from nki_hf.chips import get_chip
from nki_hf.errors import KernelFault
from nki_hf.sim.faults import SimulatorWarning

MODULES = (
    "nki", "nki.language", "nki.language.opcode", "nki.language.dtypes", "nki.isa", "nki.isa.constants", "nki.typing",
    "nki.compiler", "nki.compiler.kernel_builder", "nki.collectives", "nki.dtype", "nki.tensor", "nki.meta",
    "nki.meta.tensor", "nki.experimental",
)  # fmt: skip

KERNEL = """
import nki
import nki.isa as nisa
import nki.language as nl
from nki.isa import engine
from nki.isa.constants import dge_mode, oob_mode
from nki.language import NKIObject, affine_range
from nki.language.opcode import maximum
from nki.typing import tensor

@nki.jit
def clip(x: tensor, low: float):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    for i in affine_range(1):
        tile = nl.load(x)
        nisa.tensor_scalar(dst=tile, data=tile, op0=maximum, operand0=low, engine=engine.vector)
        nisa.dma_copy(dst=out, src=tile, dge_mode=dge_mode.none, oob_mode=oob_mode.error)
    return out
"""


@pytest.fixture
def foreign(tmp_path, monkeypatch):
    """A kernel module on disk that imports `nki`, imported inside the block; gone from sys.modules afterwards."""
    (tmp_path / "foreign_kernel.py").write_text(KERNEL)
    monkeypatch.syspath_prepend(tmp_path)
    with sim.as_nki():
        module = importlib.import_module("foreign_kernel")
    yield module
    del sys.modules["foreign_kernel"]


def test_every_public_module_resolves_inside_and_none_after():
    assert not [name for name in sys.modules if name.split(".")[0] == "nki"]
    with sim.as_nki() as nki:
        for name in MODULES:
            assert importlib.import_module(name) is sys.modules[name]
        assert nki.language.add is importlib.import_module("nki.language.opcode").add
    assert not [name for name in sys.modules if name.split(".")[0] == "nki"]
    with pytest.raises(ImportError):
        importlib.import_module("nki.language")


@pytest.mark.parametrize("name", MODULES)
def test_every_form_of_import_of_a_module_gives_the_same_module(name):
    parent, _, child = name.rpartition(".")
    forms = [f"import {name} as found", f"import {name}; found = {name}"]
    if parent:
        forms.append(f"from {parent} import {child} as found")
    for form in forms:
        with sim.as_nki():
            scope = {}
            exec(form, scope)
            assert scope["found"] is sys.modules[name]


def test_the_table_of_modules_is_complete():
    with sim.as_nki():
        assert {name for name in sys.modules if name.split(".")[0] == "nki"} == set(MODULES)


def test_compiling_to_a_file_is_refused_and_says_why():
    with sim.as_nki() as nki, pytest.raises(KernelFault, match="compiling a kernel to a file is not simulated"):
        nki.compiler.kernel_builder.compile_kernel(None, inputs={}, outputs={}, compile_opts=None)


def test_the_version_of_the_language_can_be_asked_for():
    with sim.as_nki() as nki:
        assert tuple(int(part) for part in nki.__version__.split(".")) == (0, 6, 0)


@pytest.mark.parametrize("fails", [False, True])
def test_what_was_there_before_is_restored_even_on_error(monkeypatch, fails):
    mine, child = types.ModuleType("nki"), types.ModuleType("nki.language")
    monkeypatch.setitem(sys.modules, "nki", mine)
    monkeypatch.setitem(sys.modules, "nki.language", child)
    try:
        with sim.as_nki():
            assert sys.modules["nki"] is not mine
            if fails:
                raise LookupError
    except LookupError:
        assert fails
    assert sys.modules["nki"] is mine
    assert sys.modules["nki.language"] is child


def test_blocks_may_end_in_any_order():
    """The first to open ends first: the names stay lent until the last one has ended, and so does what they ask for."""
    first, second = sim.as_nki(), sim.as_nki(sim.SimOptions(chip=get_chip("trn3")))
    first.__enter__()
    lent = second.__enter__()
    first.__exit__(None, None, None)
    assert sys.modules["nki"] is lent
    assert sim.launch(lambda: lent.isa.get_nc_version().name).returned == "gen4"
    second.__exit__(None, None, None)
    assert not [name for name in sys.modules if name == "nki" or name.startswith("nki.")]
    assert sim.simulate(lambda: None).block is None


def test_blocks_of_threads_do_not_take_the_names_from_one_another():
    failures, go = [], threading.Barrier(4)

    def work():
        try:
            go.wait(10)
            for _ in range(50):
                with sim.as_nki():
                    language = importlib.import_module("nki.language")
                    assert importlib.import_module("nki").language is language
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []
    assert "nki" not in sys.modules


def test_a_module_imported_inside_keeps_working_after_the_block(foreign, rng):
    x = rng.standard_normal((4, 6)).astype(np.float32)
    np.testing.assert_array_equal(foreign.clip(x, 0.0), np.maximum(x, 0))
    np.testing.assert_array_equal(foreign.clip[2](x, low=0.5), np.maximum(x, 0.5))


def test_unsure_rules_warn_for_foreign_kernels_and_raise_for_ours():
    with sim.as_nki() as nki:
        nl = nki.language

        def skipping(a):
            tile = nl.zeros((64, 8), nl.float32)
            nki.isa.tensor_copy(dst=tile[3:7], src=tile[5:9])  # engines start at partitions 0, 32, 64 and 96
            return a

        theirs = nki.jit(skipping)
    with pytest.warns(SimulatorWarning, match="partition"):
        theirs(np.zeros(1, np.float32))
    with pytest.raises(KernelFault, match="partition"):
        sim.jit(skipping)(np.zeros(1, np.float32))


def test_options_of_the_block_reach_its_kernels():
    from nki_hf.chips import get_chip

    with sim.as_nki(sim.SimOptions(chip=get_chip("trn3"))) as nki:
        kernel = nki.jit(lambda a: [nki.isa.get_nc_version().name])
        assert nki.simulate(kernel)(np.zeros(1)[:0].astype(np.float32)) == ["gen4"]
    assert kernel(np.zeros(1, np.float32)) == ["gen4"]


def test_variables_set_inside_the_block_are_heard_by_its_launches(monkeypatch):
    third = np.full((1, 1), 1 / 3, np.float32)
    with sim.as_nki() as nki:
        nl = nki.language

        @nki.jit
        def stored(a):
            tile = nl.load(a, dtype=nl.bfloat16)
            out = nl.ndarray(a.shape, nl.float32, buffer=nl.shared_hbm)
            nl.store(out, tile)
            return out, nki.isa.get_nc_version().name

        assert stored(third)[1] == "gen3"
        assert stored(third)[0] != third
        monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", "trn3")
        monkeypatch.setenv("NKI_PRECISE_FP", "0")
        assert nki.isa.get_nc_version().name == "gen4"
        assert stored(third)[1] == "gen4"
        assert stored(third)[0] == third
    assert stored(third)[1] == "gen4"


def test_tile_limits_at_import_time_are_those_of_the_block():
    from nki_hf.chips import get_chip

    with sim.as_nki(sim.SimOptions(chip=get_chip("trn1"))) as nki:
        assert nki.language.tile_size.sbuf_size_bytes == 128 * 192 * 1024


def test_collectives_can_be_imported_and_say_that_they_are_not_simulated():
    with sim.as_nki() as nki:
        group = nki.collectives.ReplicaGroup([[0, 1]])
        assert group.replica_groups == [[0, 1]]
        with pytest.raises(KernelFault, match="collectives are not simulated") as caught:
            nki.simulate(lambda a: nki.collectives.rank_id())(np.zeros(1, np.float32))
    assert caught.value.record.kind == "unsupported"


def test_compile_configuration_is_accepted():
    with sim.as_nki() as nki:
        config = nki.compiler.CompileConfig(level=2)

        @nki.jit(compile_config=config, specialization_config=nki.compiler.SpecializationConfig())
        def kernel(a):
            return a

    assert config.level == 2
    assert kernel(np.zeros(1, np.float32)).shape == (1,)


def test_objects_take_class_attributes_as_fields_with_and_without_dataclass():
    from nki_hf.sim import language as nl

    @dataclass
    class Marked(nl.NKIObject):
        size: int
        flag: bool = False
        plain = 3

    class Unmarked(nl.NKIObject):
        size: int
        flag: bool = False
        plain = 3

        def __post_init__(self):
            self.doubled = self.size * 2

    assert Marked(1, plain=5).plain == 5
    assert Marked(1) == Marked(1, False, 3)
    item = Unmarked(4, plain=7)
    assert (item.size, item.flag, item.plain, item.doubled) == (4, False, 7, 8)
    with pytest.raises(TypeError, match=r"no field 'colour'.*size, flag, plain"):
        Unmarked(1, colour=2)
    with pytest.raises(TypeError, match="3 fields"):
        Unmarked(1, 2, 3, 4)
