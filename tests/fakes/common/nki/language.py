"""Fake of nki.language: the simulator's language, without what a later version brought."""

from fake_neuron.machine import MACHINE

from nki_hf.sim import language as _language

SINCE = {"fori_loop": (0, 6), "while_loop": (0, 6)}
"""Release notes of NKI 0.6.0."""


def __getattr__(name):
    if tuple(map(int, MACHINE.nki_version.split(".")[:2])) < SINCE.get(name, (0, 0)):
        raise AttributeError(f"nki.language of NKI {MACHINE.nki_version} has no {name}")
    return getattr(_language, name)
