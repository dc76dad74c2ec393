"""`nki.compiler`: compile-time configuration, accepted as it is and without effect on a simulated run."""

from __future__ import annotations

from typing import Any

__all__ = ["AddressRotation", "CompileConfig", "SpecializationConfig"]


class _Configuration:
    """Keeps whatever it is given as attributes."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.args = args
        self.__dict__.update(kwargs)


class CompileConfig(_Configuration):
    """Options of one kernel's compilation (NKI 0.7)."""


class SpecializationConfig(_Configuration):
    """Options of one kernel's specialization (NKI 0.7)."""


class AddressRotation(_Configuration):
    """Rotation of buffer addresses over loop iterations (NKI 0.7); here every tile has memory of its own."""
