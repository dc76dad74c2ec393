"""The names under which kernels import the language."""

VERSION = "0.6.0"
"""The version of the language whose every public name is there; docs/nki_surface.md says what of later ones is."""
