"""Chip: the hardware numbers of one Trainium generation, by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from nki_hf.chips.param import Param

__all__ = ["Chip"]


@dataclass(frozen=True, kw_only=True)
class Chip:
    """One generation. Numbers are read as attributes by the names of `params`: `chip.sbuf_partition_bytes`.

    Attributes:
      name: trn1, trn2 or trn3.
      generation: NeuronCore generation in NKI's words, 2, 3 or 4.
      default_lnc: logical-core degree of an instance's default configuration; no chip has a higher one (on trn1 the compiler
        refuses `--lnc 2`, error code NCC_EARG001).
      params: every number, by name.
    """

    name: str
    generation: int
    default_lnc: int
    params: Mapping[str, Param] = field(repr=False)

    def __getattr__(self, name: str) -> float:
        params = self.__dict__.get("params", {})
        if name in params:
            value = params[name].value
            return int(value) if value == int(value) else value
        raise AttributeError(f"{name!r} is not a number of chip {self.__dict__.get('name')}: see `nki_hf chip` for all.")

    def __iter__(self) -> Iterator[tuple[str, Param]]:
        return iter(self.params.items())

    def __hash__(self) -> int:
        return hash(self.name)
