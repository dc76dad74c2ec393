"""The lists of public names are true: every name exists with its documented signature, and the page is current."""

import importlib
import inspect
from pathlib import Path

import pytest

from nki_hf.errors import KernelFault
from nki_hf.sim import as_nki, launch
from nki_hf.sim.sdk.as_nki import modules
from nki_hf.sim.surface import NAMESPACES
from nki_hf.sim.surface.page import page
from nki_hf.sim.surface.signatures import signature_text

PAGE = Path(__file__).parents[2] / "docs" / "nki_surface.md"
MODULES = modules()
ALL = [(namespace, name) for namespace, names in NAMESPACES.items() for name in names]


def found(namespace, name):
    value = MODULES[namespace]
    for part in name.split("."):
        value = inspect.getattr_static(value, part) if isinstance(value, type) else getattr(value, part)
    return value


@pytest.mark.parametrize(("namespace", "name"), ALL)
def test_the_name_exists_with_the_documented_signature(namespace, name):
    entry, value = NAMESPACES[namespace][name], found(namespace, name)
    if entry.signature:
        assert signature_text(value) == entry.signature


@pytest.mark.parametrize("namespace", ["nki.language", "nki.isa"])
def test_no_public_name_is_missing_from_the_lists(namespace):
    assert set(MODULES[namespace].__all__) - set(NAMESPACES[namespace]) == set()


@pytest.mark.parametrize(("namespace", "name"), [pair for pair in ALL if NAMESPACES[pair[0]][pair[1]].status == "refused"])
def test_a_refused_name_says_why(namespace, name):
    function = found(namespace, name)
    arguments = {key: None for key, item in inspect.signature(function).parameters.items() if item.default is item.empty}
    with pytest.raises(KernelFault, match="not simulated") as caught:
        launch(lambda: function(**arguments), ())
    assert caught.value.record.kind == "unsupported"


def test_the_names_are_those_that_kernels_import_as_nki():
    with as_nki():
        for namespace, name in ALL:
            module = importlib.import_module(namespace)
            for part in name.split("."):
                module = inspect.getattr_static(module, part) if isinstance(module, type) else getattr(module, part)


def test_the_page_is_current():
    assert PAGE.read_text() == page(), "run: python -m nki_hf.sim.surface > docs/nki_surface.md"
