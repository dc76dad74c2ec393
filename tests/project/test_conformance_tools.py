"""The conformance runners' own logic: extraction of examples, choice of cases, comparison and verdicts."""

import sys
import time
from dataclasses import replace
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest

from nki_hf.sim import isa as nisa
from nki_hf.sim import language as nl
from nki_hf.sim import launch
from nki_hf.sim.dtypes import as_dtype
from tools.conformance import library_cases, library_harness, library_parameters
from tools.conformance.case import Case, Outcome, Skipped, run_case
from tools.conformance.compare import Mismatch, compare
from tools.conformance.examples import examples_of, with_shape_checks
from tools.conformance.library_causes import explained
from tools.conformance.library_extra import EXTRA
from tools.conformance.library_harness import SimulatingOrchestrator
from tools.conformance.packed_arrays import is_packed, packed, unpacked

STUB = '''
def add(x, y):
    r"""Adds.

    .. code-block:: python

        import nki.language as nl

        # nki.language.add -- two tiles
        c = nl.add(a, b)
        assert nl.equal(c, a)

        # nki.language.add -- a number
        # on every element
        c = nl.add(a, 2.0)"""


class Tensor:
    def permute(self):
        """Turns.

        .. code-block:: python

            t = nl.ndarray((128, 4, 8))
            t.permute((0, 2, 1))  # shape becomes (128, 8, 4)
        """

    def scan(self):
        """Pseudo-code.

        .. code-block:: python

            for i in range(n):
                value = a +
                        b
        """
'''


def test_examples_are_split_at_their_headings_and_keep_the_imports():
    found = examples_of(STUB)
    assert [(e.owner, e.number, e.kind) for e in found] == [
        ("add", 1, "checks"),
        ("add", 2, "runs"),
        ("Tensor.permute", 1, "checks"),
        ("Tensor.scan", 1, "prose"),
    ]
    assert all(e.code.startswith("import nki.language as nl") for e in found[:2])
    assert "2.0" in found[1].code
    assert "assert" not in found[1].code


def test_shape_comments_become_assertions():
    assert with_shape_checks("t.permute((0, 2))  # shape becomes (8, 4)") == "assert (t.permute((0, 2))).shape == (8, 4)"
    assert with_shape_checks("t.view(x)  # shape stays (8, 4), same size") == "assert (t.view(x)).shape == (8, 4)"
    assert with_shape_checks("t.r(1)\n# Result shape: (2, 3)") == "assert (t.r(1)).shape == (2, 3)"
    assert with_shape_checks("x = t.slice(1)  # a slice") == "x = t.slice(1)  # a slice"


def test_comparison_measures_against_the_largest_reference_value():
    expected = np.array([[100.0, 0.0]])
    assert compare(expected + np.array([[0, 1.0]]), expected, rtol=0.02, atol=0) == pytest.approx(0.5)
    with pytest.raises(Mismatch, match=r"out\[0, 1\] is 3, the reference 0: off by 3 of 2"):
        compare(expected + np.array([[0, 3.0]]), expected, rtol=0.02, atol=0)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_comparison_refuses_values_that_are_not_finite_where_the_reference_is(bad):
    with pytest.raises(Mismatch, match="not finite at the same places"):
        compare([1.0, bad], [1.0, 2.0], rtol=1, atol=1)
    assert compare([1.0, bad], [1.0, np.nan], rtol=1, atol=1) == 0


def test_comparison_takes_another_shape_but_not_another_size():
    assert compare(np.zeros((2, 3)), np.zeros(6), rtol=0, atol=0) == 0
    with pytest.raises(Mismatch, match=r"shape \(2, 3\)"):
        compare(np.zeros((2, 3)), np.zeros(5), rtol=0, atol=0)


def test_own_cases_are_of_the_kernel_that_they_are_listed_under():
    """Or a run of one kernel would replace the row of another by a part of it."""
    for kernel, cases in EXTRA.items():
        assert {case.kernel for case in cases()} <= {kernel}


def test_cases_are_chosen_small_first_and_spread_over_options():
    candidates = [{"n": n, "flag": flag} for n in (512, 64, 4096) for flag in (False, True)]
    chosen = library_parameters.choose(candidates, 3, 1024)
    assert chosen == [{"n": 64, "flag": False}, {"n": 64, "flag": True}, {"n": 512, "flag": False}]


def test_a_package_that_the_checkouts_tests_need_is_named(tmp_path, monkeypatch):
    (tmp_path / "needs_more.py").write_text("import no_such_package_of_anybody\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "test.utils.common_dataclasses", SimpleNamespace(Platforms=None))
    with pytest.raises(SystemExit, match="needs_more imports no_such_package_of_anybody, which is not installed here"):
        library_cases.load("needs_more")
    assert "needs_more" not in sys.modules


def _raises(error):
    def run():
        raise error

    return run


@pytest.mark.parametrize(
    ("run", "verdict", "detail"),
    [
        (lambda: 0.25, "passed", "0.25 of the tolerance"),
        (lambda: "its own assertions", "passed", "its own"),
        (_raises(Mismatch("out is wrong")), "failed", "Mismatch: out is wrong"),
        (_raises(ValueError("no")), "failed", "ValueError: no"),
        (_raises(AssertionError("Kernel validation exception: d too big")), "refused", "d too big"),
        (_raises(Skipped("too large")), "not run", "too large"),
        (_raises(MemoryError("8 GB")), "not run", "too much memory"),
        (lambda: (next(iter(int, 1)) and None) or [None for _ in iter(int, 1)], "not run", "longer than"),
    ],
)
def test_verdicts(run, verdict, detail, capsys):
    outcome = run_case(Case("kernel", "option", run), 0.3)
    assert outcome.verdict == verdict
    assert detail in outcome.detail


def test_what_else_the_machine_does_takes_no_time_of_a_case():
    assert run_case(Case("kernel", "option", lambda: time.sleep(0.4)), 0.2).verdict == "passed"


def test_details_name_files_without_their_folders():
    outcome = run_case(Case("k", "o", _raises(ValueError("wrong (/home/me/checkout/kernel.py:12) in a/b"))), 5)
    assert outcome.detail == "ValueError: wrong (kernel.py:12) in a/b"


def test_refusals_of_the_simulator_are_told_from_failures():
    from nki_hf.sim.faults import fault

    for kind, verdict in (("unsupported", "refused"), ("generation", "refused"), ("shape", "failed")):
        assert run_case(Case("k", "o", lambda kind=kind: fault(kind, "op", "no")), 5).verdict == verdict


@pytest.mark.parametrize("name", ["float8_e4m3fn_x4", "float8_e5m2_x4", "float4_e2m1fn_x4"])
def test_packed_host_arrays_hold_four_numbers_lowest_bits_first_and_keep_their_type_in_a_kernel(name, rng):
    single = getattr(ml_dtypes, name.removesuffix("_x4"))
    numbers = rng.uniform(-5, 5, (8, 12)).astype(np.float32)
    array = packed(numbers, as_dtype(name))
    bits = 8 * array.itemsize // 4
    codes = numbers.astype(single).view(np.uint8).astype(np.uint64).reshape(8, 3, 4)
    assert array.shape == (8, 3)
    assert is_packed(array)
    assert not is_packed(np.zeros(1, array.dtype.str))
    np.testing.assert_array_equal(array.astype(np.uint64), sum(codes[..., i] << np.uint64(i * bits) for i in range(4)))
    np.testing.assert_array_equal(unpacked(array), numbers.astype(single).astype(np.float32))
    seen = []
    launch(lambda tensor: seen.append((tensor.dtype, tensor.shape)), (array,))
    assert seen == [(getattr(nl, name), (8, 3))]


class _Sweep:
    """A case of the library's older sweep framework, as far as the runner looks at it."""

    def __init__(self, **sizes):
        self.tensors = {"t": sizes}


def test_a_sweep_counts_every_size_of_its_case_and_names_them():
    case = {"range_test_options": _Sweep(B=4, T=4096, V=32128, dtype="bfloat16")}
    small = {"range_test_options": _Sweep(B=1, T=3, V=5, dtype="bfloat16")}
    assert library_parameters.choose([case, small], 1, largest=1 << 18) == [small]
    assert library_parameters.choose([case, small], 2, largest=5000) == [small]


class _Golden:
    """A reference that is computed when it is asked for, as the library's are."""

    def __init__(self, inputs):
        self._inputs = inputs

    @property
    def golden(self):
        return {"out": self._inputs["x"] * 2}


@pytest.mark.parametrize(("factor", "fails"), [(2.0, False), (3.0, True)])
def test_a_kernel_that_writes_its_input_does_not_change_the_reference_made_from_it(factor, fails, rng):
    def doubled_in_place(x):
        tile = nl.load(x)
        nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=factor)
        nisa.dma_copy(dst=x, src=tile)
        return x

    inputs = {"x": rng.standard_normal((8, 8)).astype(np.float32)}
    checks = SimpleNamespace(golden_output=_Golden(inputs), relative_accuracy=1e-6, absolute_accuracy=0.0)
    compiler = SimpleNamespace(platform_target=SimpleNamespace(get_compile_target=lambda: "trn2"), logical_nc_config=1)
    launched = SimpleNamespace(
        kernel_func=doubled_in_place, kernel_input=inputs, compiler_input=compiler, validation_args=checks
    )
    orchestrator = object.__new__(SimulatingOrchestrator)
    if fails:
        with pytest.raises(Mismatch):
            orchestrator._execute(launched)
    else:
        orchestrator._execute(launched)
        assert orchestrator.share < 1


TRACED = SimpleNamespace(name="trace_only")  # the library's mark of tests whose kernels assert what they are about


def _marked(*marks):
    def mark(function):
        function.pytestmark = [pytest.mark.parametrize("n", [4096, 2048, 9000]).mark, *marks]
        return function

    return mark


def _launch_of(x, golden, **more):
    """A launch of the library's tests that copies `x`."""

    def copied(x):
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=out, src=nl.load(x))
        return out

    compiler = SimpleNamespace(platform_target=SimpleNamespace(get_compile_target=lambda: "trn2"), logical_nc_config=1)
    checks = SimpleNamespace(golden_output=SimpleNamespace(golden=golden), relative_accuracy=1e-6, absolute_accuracy=0.0)
    return SimpleNamespace(kernel_func=copied, kernel_input={"x": x, **more}, compiler_input=compiler, validation_args=checks)


@pytest.fixture
def common(monkeypatch):
    """The library's own names that its tests and the harness look at."""
    names = SimpleNamespace(Platforms={"TRN2": "TRN2", "TRN3": "TRN3"}, TraceMode=SimpleNamespace(Simulator=1))
    monkeypatch.setitem(sys.modules, "test.utils.common_dataclasses", names)
    monkeypatch.setitem(library_cases.MODULES, "copied", ("none", 1024))


def test_of_a_test_with_large_cases_only_the_two_smallest_are_taken(common):
    class Group:
        @_marked()
        def test_copied(self, n, test_manager):
            x = np.arange(n, dtype=np.float32).reshape(4, -1)
            test_manager.execute(_launch_of(x, {"out": x}))

    found = library_cases._cases_of_method("copied", Group, "test_copied", Group.test_copied, 6)
    assert [case.option for case in found] == ["test_copied: n=2048", "test_copied: n=4096"]
    assert [case.run() for case in found] == [0.0, 0.0]


@pytest.mark.parametrize(
    ("body", "marks", "verdict", "detail"),
    [
        (lambda x, manager: None, (), "not run", "before there is a launch"),
        (lambda x, manager: manager.execute(_launch_of(x, None)), (), "not run", "the test compares nothing"),
        (
            lambda x, manager: manager.execute(_launch_of(x, None)),
            (SimpleNamespace(name="trace_only"),),
            "passed",
            "assertions",
        ),
        (lambda x, manager: manager.execute(_launch_of(x, {"out": x + 1})), (), "failed", "Mismatch"),
        (lambda x, manager: manager.execute(_launch_of(x, {"out": x}, swizzled=False)), (), "passed", "0.00"),
        (lambda x, manager: manager.execute(_launch_of(x, {"out": x}, swizzled=True)), (), "not run", "passes swizzled, which"),
    ],
)
def test_a_test_that_judges_nothing_has_not_passed(common, body, marks, verdict, detail):
    class Group:
        @_marked(*marks)
        def test_copied(self, n, test_manager):
            body(np.ones((4, 8), np.float32), test_manager)

    case = library_cases._cases_of_method("copied", Group, "test_copied", Group.test_copied, 1)[0]
    outcome = run_case(case, 60)
    assert (outcome.verdict, detail in outcome.detail) == (verdict, True), outcome


def test_outputs_of_packed_types_are_compared_by_their_numbers_and_places_never_written_count_as_zeros():
    numbers = np.array([[1.0, -2.0, 0.5, 448.0]], np.float32)
    have = packed(numbers, as_dtype("float8_e4m3fn_x4"))
    for want in (have.copy(), np.asarray(have.view(np.uint32)).view(np.float32)):
        one, other = library_harness._comparable(have, want)
        np.testing.assert_array_equal(one, numbers)
        np.testing.assert_array_equal(other, numbers)
    ints, _ = library_harness._comparable(np.array([4, 4, 7], np.uint8), np.array([0, 4, 0], np.uint8))
    floats, _ = library_harness._comparable(np.array([np.nan, np.nan, 1.0]), np.array([0.0, 2.0, 0.0]))
    np.testing.assert_array_equal(ints, [0, 4, 7])
    np.testing.assert_array_equal(floats, [0.0, np.nan, 1.0])


def test_outputs_are_told_by_the_names_that_the_test_declares():
    declared = dict.fromkeys(("out", "data", "scale"))
    golden = SimpleNamespace(golden={"out": np.ones(2), "scale": np.full(2, 3.0)}, output_ndarray=declared)
    checks = SimpleNamespace(golden_output=golden, relative_accuracy=1e-6, absolute_accuracy=0.0)
    orchestrator = object.__new__(SimulatingOrchestrator)
    assert orchestrator._check((np.ones(2), np.zeros(2), np.full(2, 3.0)), checks) == 0
    with pytest.raises(Mismatch, match="scale"):
        orchestrator._check((np.ones(2), np.full(2, 3.0), np.zeros(2)), checks)


@pytest.mark.parametrize(
    ("switch", "wanted"), [({}, {"VALID", "INVALID"}), ({"enable_invalid_combination_tests": False}, {"VALID"})]
)
def test_a_sweep_has_the_refusals_that_it_asks_for(switch, wanted):
    accept = lambda n: SimpleNamespace(name="VALID" if n % 2 else "INVALID")  # noqa: E731
    rows = library_parameters._coverage({"n": [1, 2], "filter": accept, **switch}, 10)
    assert {"INVALID" if row["is_negative_test_case"] else "VALID" for row in rows} == wanted
    assert len(library_parameters._coverage({"n": [1, 2], "filter": lambda n: None}, 10)) == 2


def test_a_known_cause_is_told_of_the_case_that_has_it_and_of_no_other():
    case = Outcome("moe_tkg", "test_moe_tkg_model: tokens=1, dtype=float16", "failed", "Mismatch: inf.")
    assert explained(case).detail.startswith("Mismatch: inf: the test's values leave float16's range")
    for other in (replace(case, option="test_moe_tkg_sweep: dtype=float16"), replace(case, verdict="passed")):
        assert explained(other) is other
