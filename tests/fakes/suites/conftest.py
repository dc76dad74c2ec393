"""Fixtures of the suites: a fresh machine for each test, and the seam for tensors that only stand for device tensors."""

import os

import pytest

if os.environ["FAKE_NEURON_WORLD"] in ("native", "xla"):
    import torch_neuronx  # noqa: F401  (torch loads the native one by itself on a real machine)
    from fake_neuron import MACHINE
    from fake_neuron.tensor import DeviceTensor, XlaTensor

    from nki_hf.adapters import device

    device.PLAIN_TENSORS = (*device.PLAIN_TENSORS, DeviceTensor, XlaTensor)

    @pytest.fixture(autouse=True)
    def _fresh_machine():
        MACHINE.reset()
