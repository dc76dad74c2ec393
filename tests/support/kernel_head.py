"""The first lines of short kernels: imports, and functions that allocate a tile and load one."""

from __future__ import annotations

__all__ = ["HEAD"]

HEAD = """
import nki
import nki.isa as nisa
import nki.language as nl


def tile(shape, dtype=nl.float32, buffer=nl.sbuf):
    return nl.ndarray(shape, dtype, buffer=buffer)


def load(source):
    found = tile(source.shape, source.dtype)
    nisa.dma_copy(dst=found, src=source)
    return found

"""
