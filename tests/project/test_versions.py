"""Version floors: one error below them, the same numbers wherever they are written, and the measured table kept honest."""

import re
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest
import torch
import version_smoke
from packaging.requirements import Requirement
from packaging.version import Version

import nki_hf
from nki_hf.adapters import mask_function, registration
from nki_hf.errors import BackendUnavailable

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
FLOORS = {name: ".".join(map(str, floor)) for name, floor in registration.FLOORS.items()}


def _pretend(monkeypatch, package, number):
    monkeypatch.setattr("importlib.metadata.version", lambda name: number if name == package else version(name))


@pytest.mark.parametrize(
    ("package", "number", "needed"),
    [("transformers", "4.56.2", "4.57"), ("torch", "2.8.1+cpu", "2.9"), ("torch", "1.13", "2.9")],
)
def test_below_a_floor_one_error_names_what_is_found_needed_and_to_do(monkeypatch, package, number, needed):
    _pretend(monkeypatch, package, number)
    said = rf'^{package}={re.escape(number)} is too old .* must be {needed} or newer\. .*pip install "{package}>={needed}"$'
    with pytest.raises(BackendUnavailable, match=said):
        nki_hf.register()
    with pytest.raises(BackendUnavailable, match=said):
        nki_hf.apply(torch.nn.Identity())


_OLD = """
import importlib.metadata as metadata, sys, warnings
sys.path[:0] = [{root!r}, {root!r} + "/tools", {root!r} + "/tests/support"]
real = metadata.version
metadata.version = lambda name: {number!r} if name == {package!r} else real(name)
import nki_hf
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    import transformers.modeling_utils
print(*(each.message for each in seen if "nki" in str(each.message)), sep="\\n")
from transformers import AutoModelForCausalLM
from tiny import tiny_qwen3, token_ids
built = AutoModelForCausalLM.from_config(tiny_qwen3().config, attn_implementation="nki")
switched = tiny_qwen3()
switched.set_attn_implementation("nki")
for run in (lambda: built(token_ids()), lambda: switched(token_ids()), lambda: built.generate(token_ids()), nki_hf.register):
    try:
        run()
    except nki_hf.BackendUnavailable as error:
        print(error)
switched.set_attn_implementation("eager")
switched(token_ids())
"""


@pytest.mark.parametrize(("package", "number", "needed"), [("transformers", "4.56.2", "4.57"), ("torch", "2.8.1+cpu", "2.9")])
def test_below_a_floor_a_model_that_asks_for_nki_says_so_too(package, number, needed):
    code = _OLD.format(root=str(ROOT), package=package, number=number)
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    said = f'{package}={number} is too old for attn_implementation="nki": it must be {needed} or newer. '
    # The warning at import, then one error from each way to run.
    assert done.stdout.splitlines() == [f'{said}Upgrade it: pip install "{package}>={needed}"'] * 5


@pytest.mark.parametrize(
    ("package", "number"),
    [("transformers", "4.57.0"), ("transformers", "6.0.0.dev0"), ("torch", "2.9.0a0+git1"), ("torch", "3.0")],
)
def test_at_and_above_a_floor_it_registers(monkeypatch, package, number):
    _pretend(monkeypatch, package, number)
    nki_hf.register()


def _requirements(extra):
    """An extra's requirements by name, those of the extras that it holds included."""
    found = {}
    for requirement in map(Requirement, PROJECT["optional-dependencies"][extra]):
        if requirement.name == PROJECT["name"]:
            for inner in requirement.extras:
                found.update(_requirements(inner))
        else:
            found[requirement.name] = requirement
    return found


def _floor(requirement):
    (clause,) = (clause for clause in requirement.specifier if clause.operator == ">=")
    return clause.version


def test_the_floors_of_the_code_are_those_of_the_metadata_and_of_the_documents():
    metadata = _requirements("hf")
    assert {name: _floor(metadata[name]) for name in FLOORS} == FLOORS
    for path in ("README.md", "docs/versions.md"):
        text = " ".join((ROOT / path).read_text().split())
        said = {name: re.findall(rf"\b{name} (\d+\.\d+) or newer", text) for name in FLOORS}
        assert said == {name: [number] for name, number in FLOORS.items()}, path


def test_pythons_floor_is_the_same_everywhere():
    floor = PROJECT["requires-python"].removeprefix(">=")
    assert f"Python {floor} or newer" in (ROOT / "README.md").read_text()
    assert f"sys.version_info < ({floor.replace('.', ', ')})" in (ROOT / "Makefile").read_text()
    known = [text.rpartition(" ")[2] for text in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", text)]
    assert min(known, key=Version) == floor


def test_what_is_installed_is_within_the_bounds():
    wanted = {**{text: Requirement(text) for text in PROJECT["dependencies"]}, **_requirements("test")}
    outside = []
    for requirement in wanted.values():
        try:
            found = version(requirement.name)
        except PackageNotFoundError:
            found = "not installed"
        if found == "not installed" or not requirement.specifier.contains(found, prereleases=True):
            outside.append(f"{requirement}: {found}")
    assert not outside


def test_every_bound_of_an_ordinary_package_is_a_floor_alone():
    # An upper bound in a plug-in keeps its users from upgrading; the Neuron packages have worlds that exclude each other.
    wanted = [Requirement(text) for text in PROJECT["dependencies"]]
    wanted += [each for extra in ("hf", "trace", "plot", "test", "dev") for each in _requirements(extra).values()]
    for requirement in wanted:
        assert [clause.operator for clause in requirement.specifier] == [">="], str(requirement)


def test_rows_given_as_positions_are_counted_as_rows(monkeypatch):
    # Transformers before 5.4 passes cache_position in the place of q_length.
    monkeypatch.setattr(mask_function, "sdpa_mask", lambda **kwargs: kwargs)
    for rows, may_be_skipped in ((8, True), (1, True), (5, False)):
        for given in ({"cache_position": torch.arange(rows)}, {"q_length": rows}):
            passed = mask_function.nki_mask(batch_size=1, kv_length=8, **given)
            skipped = passed is None or passed.get("allow_is_causal_skip", True)  # None: no mask is asked for at all
            assert skipped is may_be_skipped, given


TABLE = version_smoke.columns(version_smoke.PAGE.read_text())
"""`{"transformers / torch": {row: cell}}` of the page."""


def test_the_table_has_every_case_from_the_floors_to_the_version_of_our_runs():
    pairs = [tuple(map(Version, heading.split(" / "))) for heading in TABLE]
    for name, column in (("transformers", 0), ("torch", 1)):
        lowest = min(pair[column] for pair in pairs)
        assert f"{lowest.major}.{lowest.minor}" == FLOORS[name]
    pinned = (ROOT / "constraints.txt").read_text().split("torch==")[1].split()[0]
    assert Version(pinned) in {number for _, number in pairs}
    for name, cells in TABLE.items():
        assert set(version_smoke.CASES) <= set(cells)
        if name.endswith(pinned):
            assert "-" not in cells.values(), name  # not run


def test_from_5_14_on_every_case_of_the_table_is_ok_that_reaches_nki():
    full = {name: cells for name, cells in TABLE.items() if Version(name.split(" / ")[0]) >= Version("5.14")}
    assert len(full) >= 2
    for name, cells in full.items():
        assert {cells[case] for case in version_smoke.CASES} <= {"ok", "not routed", "-"}, name
    newest = list(full.values())[-1]
    assert {newest[case] for case in version_smoke.CASES} == {"ok"}


def test_the_page_explains_every_case_that_is_not_ok():
    prose = version_smoke.PAGE.read_text().partition("<!-- end versions -->")[2]
    for name, cells in TABLE.items():
        for case in version_smoke.CASES:
            assert cells[case] in ("ok", "-") or f"`{case}`" in prose, f"{name}: {case} = {cells[case]}"


def test_a_column_is_added_in_order_or_replaced():
    case = next(iter(version_smoke.CASES))
    page = "head\n<!-- begin versions -->\n<!-- end versions -->\ntail\n"
    for name, word in (("5.14.0 / 2.13.0", "a"), ("5.4.0 / 2.13.0", "b"), ("4.57.6 / 2.9.1", "c"), ("5.4.0 / 2.13.0", "d")):
        page = version_smoke.with_column(page, name, {case: word})
    assert list(version_smoke.columns(page)) == ["4.57.6 / 2.9.1", "5.4.0 / 2.13.0", "5.14.0 / 2.13.0"]
    assert version_smoke.columns(page)["5.4.0 / 2.13.0"][case] == "d"
    assert page.startswith("head\n")
    assert page.endswith("tail\n")


def test_an_outcome_says_what_went_wrong(monkeypatch):
    def fell_back():
        nki_hf.attention(*torch.randn(3, 1, 2, 8, 16, dtype=torch.float64))

    def other_error():
        raise KeyError("q_length")

    cases = {"fell back": fell_back, "KeyError": other_error, "not routed": lambda: 0.0}
    monkeypatch.setattr(version_smoke, "CASES", {**cases, "differs": _called(1.0), "ok": _called(1e-6)})
    for word in version_smoke.CASES:
        assert version_smoke.outcome(word).word == word


def _called(difference):
    def case():
        nki_hf.attention(*torch.randn(3, 1, 2, 8, 16))
        return difference

    return case


@pytest.mark.slow
@pytest.mark.parametrize("case", version_smoke.CASES)
def test_the_versions_of_this_environment_pass(case):
    assert version_smoke.outcome(case).word == "ok"
