"""Fake of nki.isa: the simulator's instructions."""

from nki_hf.sim import isa as _isa


def __getattr__(name):
    return getattr(_isa, name)
