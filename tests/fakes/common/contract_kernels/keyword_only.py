"""Breaks signature-kinds."""

from nki_hf.lang import nki


@nki.jit
def keyword_only(x, *, scale):
    """X -> nothing."""
