"""Fake of nki.language: the simulator's language."""

from nki_hf.sim import language as _language


def __getattr__(name):
    return getattr(_language, name)
