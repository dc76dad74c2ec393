"""Installations that look like Neuron and are not: run once per fake, FAKE_NEURON_WORLD says which."""

import importlib
import os

import pytest

from nki_hf.backends.base import KernelCall
from nki_hf.backends.neuron import NeuronBackend
from nki_hf.backends.neuron_world import Host
from nki_hf.errors import BackendUnavailable
from nki_hf.tools.env import report

WORDS = {"placeholder": "placeholder of the public index", "container": "--device /dev/neuron0", "no_path": "activate the venv"}
WORLD = os.environ["FAKE_NEURON_WORLD"]


def _without_transformers(name):
    if name.startswith("transformers"):
        raise ImportError(name)  # slow to import, and not what this is about
    return importlib.import_module(name)


def test_env_names_the_trap():
    found = report(Host(import_module=_without_transformers))
    assert found.facts["neuron kernels"] == "cannot be launched"
    assert any(WORDS[WORLD] in problem for problem in found.problems)


def test_a_launch_says_why_it_cannot():
    call = KernelCall(kernel="scale_rows", tensors={"x": object()}, constants={}, lnc=2)
    with pytest.raises(BackendUnavailable, match=WORDS[WORLD]):
        NeuronBackend(kernels="contract_kernels").run(call)
