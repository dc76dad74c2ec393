"""Detection of the PyTorch worlds, the chip and the logical-core degree, over a machine made of plain values."""

from types import ModuleType, SimpleNamespace

import pytest

from nki_hf.backends.neuron import NeuronBackend
from nki_hf.backends.neuron_lnc import find_lnc, find_platform, lnc_sources, resolve_lnc
from nki_hf.backends.neuron_world import Host, detect_nki, detect_world, device_world
from nki_hf.errors import BackendUnavailable
from nki_hf.tools.model_bench.device.plan import plan
from nki_hf.tools.model_bench.options import BenchOptions
from nki_hf.tools.model_bench.worlds import choose_device

NEURON_LS = "instance-type: trn2.3xlarge\ninstance-id: i-0\nlogical-neuroncore-config: 2\n+--------+\n"


def _module(name, **attributes):
    module = ModuleType(name)
    vars(module).update(attributes)
    return module


def _host(modules=None, versions=None, environ=None, neuron_ls=None):
    """A machine on which importing `modules[name]` gives that module or raises that exception."""
    known = modules or {}

    def import_module(name):
        found = known.get(name, ModuleNotFoundError(f"No module named {name!r}"))
        if isinstance(found, BaseException):
            raise found
        return found

    return Host(
        import_module=import_module,
        version=(versions or {}).get,
        environ=environ or {},
        glob=lambda pattern: [],
        run=lambda command: neuron_ls if command[0] == "neuron-ls" else None,
    )


def _native(**utils):
    return _module("torch_neuronx", nki_op=object(), utils=SimpleNamespace(**utils))


def _xla():
    return _module("torch_neuronx", trace=object())


def test_nothing_installed_is_no_world_and_says_where_to_get_it():
    world = detect_world(_host())
    assert (world.name, world.device) == ("none", None)
    assert "No module named 'torch_neuronx'" in world.problem
    assert "AWS's own package index" in world.problem


def test_native_world_is_known_by_nki_op():
    world = detect_world(_host({"torch_neuronx": _native()}, {"torch-neuronx": "2.13.3.0"}))
    assert (world.name, world.device, world.problem) == ("native", "neuron", None)
    assert world.torch_neuronx.version == "2.13.3.0"


def test_native_world_is_known_by_torch_neuron_even_if_trace_exists():
    torch = _module("torch", neuron=SimpleNamespace())
    assert detect_world(_host({"torch_neuronx": _xla(), "torch": torch, "torch_xla": _module("torch_xla")})).name == "native"


def test_xla_world_needs_torch_xla():
    assert detect_world(_host({"torch_neuronx": _xla(), "torch_xla": _module("torch_xla")})).name == "xla"
    alone = detect_world(_host({"torch_neuronx": _xla()}))
    assert alone.name == "none"
    assert "torch_xla cannot be imported" in alone.problem


def test_import_that_raises_runtime_error_in_a_container_is_diagnosed():
    world = detect_world(_host({"torch_neuronx": RuntimeError("Failed to get Neuron instance information\nstack ...")}))
    assert world.name == "none"
    assert "--device /dev/neuron0" in world.problem
    assert "stack" not in world.problem


def test_other_runtime_errors_of_the_import_are_quoted():
    assert "undefined symbol" in detect_world(_host({"torch_neuronx": RuntimeError("undefined symbol: x")})).problem


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError("libnrt.so.1: cannot open shared object file"), "OSError: libnrt.so.1: cannot open shared object file"),
        (AttributeError("module 'torch' has no attribute '_C'"), "AttributeError: module 'torch' has no attribute '_C'"),
        (KeyError(), "KeyError"),
        (SystemExit(3), "SystemExit: 3"),
    ],
)
@pytest.mark.parametrize("name", ["torch_neuronx", "nki", "nki.isa", "torch_xla", "torch"])
def test_whatever_an_import_raises_is_a_problem_in_one_line_and_no_crash(name, error, words):
    modules = {"torch_neuronx": _xla(), "torch_xla": _module("torch_xla"), "nki": _module("nki", jit=object())}
    host = _host({**modules, "nki.isa": _module("nki.isa"), name: error})
    world, nki = detect_world(host), detect_nki(host)
    problems = [text for text in (world.problem, nki.problem) if text]
    assert len(problems) == (name != "torch")
    assert all("\n" not in text for text in problems)
    if name in ("torch_neuronx", "torch_xla", "nki"):
        assert words in problems[0]


def test_placeholder_of_the_public_index_is_no_world():
    world = detect_world(_host({"torch_neuronx": _module("torch_neuronx")}, {"torch-neuronx": "0.0.1"}))
    assert world.name == "none"
    assert "torch_neuronx 0.0.1 has neither trace" in world.problem
    assert "placeholder" in world.problem


@pytest.mark.parametrize(
    ("modules", "words"),
    [
        ({}, "cannot be imported"),
        ({"nki": RuntimeError("no devices found")}, "no devices found"),
        ({"nki": _module("nki")}, "has no nki.jit"),
        ({"nki": _module("nki", jit=object())}, "has no nki.isa"),
    ],
)
def test_unusable_nki_says_why(modules, words):
    package = detect_nki(_host(modules))
    assert package.module is None
    assert words in package.problem


def test_usable_nki_has_jit_and_isa():
    package = detect_nki(_host({"nki": _module("nki", jit=object(), __version__="0.7.0"), "nki.isa": _module("nki.isa")}))
    assert (package.version, package.problem) == ("0.7.0", None)


def test_routing_asks_the_device_type_only():
    assert [device_world(kind) for kind in ("neuron", "xla", "cpu", "cuda", "meta")] == ["native", "xla", None, None, None]


# ---- LNC -----------------------------------------------------------------------------------------------------------


def _lnc(environ=None, neuron_ls=None, **utils):
    host = _host({"torch_neuronx": _native(**utils)}, environ=environ, neuron_ls=neuron_ls)
    return resolve_lnc(detect_world(host), host)


def test_lnc_comes_from_torch_neuronx_as_an_int_although_it_answers_text():
    lnc = _lnc(get_logical_neuron_cores=lambda: "2")
    assert (lnc.value, type(lnc.value)) == (2, int)
    assert "get_logical_neuron_cores" in lnc.source


@pytest.mark.parametrize(
    ("environ", "neuron_ls", "value", "source"),
    [
        ({"NEURON_LOGICAL_NC_CONFIG": "1"}, None, 1, "NEURON_LOGICAL_NC_CONFIG"),
        ({"NEURON_RT_VIRTUAL_CORE_SIZE": "2"}, None, 2, "NEURON_RT_VIRTUAL_CORE_SIZE"),
        ({"NEURON_CC_FLAGS": "-O1 --lnc=1"}, None, 1, "--lnc in NEURON_CC_FLAGS"),
        ({"NEURON_CC_FLAGS": "--logical-nc-config 2 -O1"}, None, 2, "--logical-nc-config in NEURON_CC_FLAGS"),
        ({"NEURON_CC_FLAGS": "-O1 -lnc 1"}, None, 1, "-lnc in NEURON_CC_FLAGS"),
        ({"NEURON_CC_FLAGS": "--lnc=2 --logical-nc-config 2 --lnc=2"}, None, 2, "--lnc in NEURON_CC_FLAGS"),
        ({}, NEURON_LS, 2, "neuron-ls"),
        ({"NEURON_LOGICAL_NC_CONFIG": "1"}, NEURON_LS, 1, "NEURON_LOGICAL_NC_CONFIG"),
        ({"NEURON_PLATFORM_TARGET_OVERRIDE": "trn3"}, None, 2, "the default of trn3"),
        ({"NEURON_PLATFORM_TARGET_OVERRIDE": "trn1"}, None, 1, "the default of trn1"),
        ({}, "instance-type: inf2.xlarge\n", 1, "the default of trn1"),  # Inf2 has the cores of Trn1
        ({"NEURON_PLATFORM_TARGET_OVERRIDE": "inf2"}, None, 1, "the default of trn1"),
    ],
)
def test_lnc_sources_in_order_of_precedence(environ, neuron_ls, value, source):
    lnc = _lnc(environ, neuron_ls)
    assert (lnc.value, lnc.source) == (value, source)


def test_lnc_mismatch_between_runtime_and_compiler_is_one_line():
    with pytest.raises(BackendUnavailable) as caught:
        _lnc({"NEURON_LOGICAL_NC_CONFIG": "1", "NEURON_CC_FLAGS": "--lnc=2"})
    text = str(caught.value)
    assert "NEURON_LOGICAL_NC_CONFIG=1" in text
    assert "--lnc in NEURON_CC_FLAGS=2" in text
    assert "\n" not in text


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ("--lnc=2 --logical-nc-config=1", "--lnc in NEURON_CC_FLAGS=2, --logical-nc-config in NEURON_CC_FLAGS=1"),
        ("-O1 --lnc=1 --lnc=2", "--lnc in NEURON_CC_FLAGS=1, --lnc in NEURON_CC_FLAGS (word 3)=2"),
        ("--lnc 1 -lnc 2", "--lnc in NEURON_CC_FLAGS=1, -lnc in NEURON_CC_FLAGS=2"),
        ("--logical-nc-config 2 '--lnc=1'", "--logical-nc-config in NEURON_CC_FLAGS=2, --lnc in NEURON_CC_FLAGS=1"),
    ],
)
@pytest.mark.parametrize("runtime", [None, "1", "2"])
def test_flags_that_contradict_each_other_are_one_line_that_names_each(flags, named, runtime):
    environ = {"NEURON_CC_FLAGS": flags} | ({"NEURON_LOGICAL_NC_CONFIG": runtime} if runtime else {})
    with pytest.raises(BackendUnavailable) as caught:
        _lnc(environ)
    assert str(caught.value).startswith("LNC differs between")
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("flags", ["--lnc", "--lnc=", "--lnc=2 --logical-nc-config=3", "--lnc=2 --lnc"])
def test_every_flag_must_state_a_degree(flags):
    with pytest.raises(BackendUnavailable, match=r"in NEURON_CC_FLAGS.* is not a logical-core degree"):
        _lnc({"NEURON_CC_FLAGS": flags})


@pytest.mark.parametrize(
    ("environ", "neuron_ls", "named"),
    [
        ({"NEURON_LOGICAL_NC_CONFIG": "2"}, "instance-type: trn1.2xlarge\n", "NEURON_LOGICAL_NC_CONFIG=2 on trn1"),
        ({"NEURON_RT_VIRTUAL_CORE_SIZE": "2"}, "instance-type: trn1n.32xlarge\n", "NEURON_RT_VIRTUAL_CORE_SIZE=2 on trn1"),
        ({"NEURON_CC_FLAGS": "--lnc 2"}, "instance-type: trn1.2xlarge\n", "--lnc in NEURON_CC_FLAGS=2 on trn1"),
        ({"NEURON_PLATFORM_TARGET_OVERRIDE": "trn1"}, NEURON_LS, "neuron-ls=2 on trn1"),
    ],
)
def test_two_cores_are_refused_on_trn1_which_does_not_group_them(environ, neuron_ls, named):
    with pytest.raises(BackendUnavailable) as caught:
        _lnc(environ, neuron_ls)
    text = str(caught.value)
    assert (text.startswith(named), "only LNC 1 exists there" in text, "\n" in text) == (True, True, False)
    good = {name: value.replace("2", "1") for name, value in environ.items()}
    if neuron_ls != NEURON_LS:
        assert _lnc(good, neuron_ls).value == 1


@pytest.mark.parametrize("text", ["3", "0", "two", "(2,)", ""])
def test_lnc_other_than_1_or_2_is_refused(text):
    with pytest.raises(BackendUnavailable, match=r"must be 1 or 2"):
        _lnc({"NEURON_LOGICAL_NC_CONFIG": text})


def test_a_quote_that_is_not_closed_in_the_compilers_flags_is_one_line():
    with pytest.raises(BackendUnavailable) as caught:
        _lnc({"NEURON_CC_FLAGS": "--cache_dir='/x", "NEURON_LOGICAL_NC_CONFIG": "2"})
    assert str(caught.value).startswith('NEURON_CC_FLAGS="--cache_dir=\'/x" cannot be split')


def test_a_runtime_that_raises_its_own_types_leaves_the_other_sources():
    class NrtError(Exception):
        pass

    def broken():
        raise NrtError("nrt_init failed")

    assert _lnc({"NEURON_LOGICAL_NC_CONFIG": "1"}, get_logical_neuron_cores=broken).value == 1


@pytest.mark.parametrize("asked", ["auto", "neuron"])
@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"NKI_SIMULATOR": "1", "NEURON_LOGICAL_NC_CONFIG": "2"}, "NKI_SIMULATOR=1: every kernel would run in nki's CPU"),
        ({"NEURON_LOGICAL_NC_CONFIG": "1", "NEURON_CC_FLAGS": "--lnc=2"}, "LNC differs between"),
        ({"NEURON_LOGICAL_NC_CONFIG": "3"}, "must be 1 or 2"),
    ],
)
def test_a_benchmark_refuses_a_device_whose_times_would_not_be_the_devices(asked, environ, words):
    host = _host({"torch_neuronx": _native()}, environ=environ)
    with pytest.raises(BackendUnavailable, match=words) as caught:
        choose_device(asked, host)
    assert "\n" not in str(caught.value)
    with pytest.raises(BackendUnavailable) as planned:
        plan(BenchOptions(), "neuron", host)
    assert str(planned.value) == str(caught.value)
    assert choose_device("cpu", host) == "cpu"


def test_the_back_end_refuses_nkis_own_simulator():
    modules = {"torch_neuronx": _native(), "nki": _module("nki", jit=object()), "nki.isa": _module("nki.isa")}
    good = {"NEURON_LOGICAL_NC_CONFIG": "2", "NEURON_PLATFORM_TARGET_OVERRIDE": "trn2"}
    assert NeuronBackend(_host(modules, environ=good)).unavailable() is None
    assert "NKI_SIMULATOR=1" in NeuronBackend(_host(modules, environ={**good, "NKI_SIMULATOR": "1"})).unavailable()


def test_unknown_lnc_is_not_guessed():
    with pytest.raises(BackendUnavailable, match="Set NEURON_LOGICAL_NC_CONFIG"):
        _lnc()


def test_lnc_sources_survive_a_torch_neuronx_that_cannot_see_a_device():
    def no_device():
        raise RuntimeError("Failed to get Neuron instance information")

    assert _lnc({"NEURON_LOGICAL_NC_CONFIG": "2"}, get_logical_neuron_cores=no_device).value == 2


def test_the_utils_module_is_imported_where_the_package_does_not_do_so():
    utils = _module("torch_neuronx.utils", get_logical_neuron_cores=lambda: "1", get_platform_target=lambda: "trn2")
    host = _host({"torch_neuronx": _module("torch_neuronx", nki_op=object()), "torch_neuronx.utils": utils})
    world = detect_world(host)
    assert resolve_lnc(world, host).value == 1
    assert find_platform(world, host).chip == "trn2"


def test_platform_prefers_the_override_and_reports_the_instance():
    host = _host(environ={"NEURON_PLATFORM_TARGET_OVERRIDE": "trn3"}, neuron_ls=NEURON_LS)
    platform = find_platform(detect_world(host), host)
    assert (platform.chip, platform.instance) == ("trn3", "trn2.3xlarge")
    host = _host(neuron_ls=NEURON_LS)
    assert find_platform(detect_world(host), host).chip == "trn2"
    host = _host()
    assert find_platform(detect_world(host), host).chip is None


def test_sources_are_listed_as_found():
    host = _host(environ={"NEURON_LOGICAL_NC_CONFIG": "2"}, neuron_ls=NEURON_LS)
    assert lnc_sources(detect_world(host), host) == {"NEURON_LOGICAL_NC_CONFIG": "2", "neuron-ls": "2"}
    assert find_lnc({}, "trn2")[0].value == 2
