"""The share of attention in a decoder layer: simulated attention beside a floor of the layer's matrix products."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from nki_hf.chips import Chip

__all__ = ["LinearWork", "linear_work", "shares"]


@dataclass(frozen=True, kw_only=True)
class LinearWork:
    """The matrix products of one decoder layer: projections and MLP.

    Attributes:
      weights: their elements.
      nbytes: their bytes in the run's dtype.
    """

    weights: int
    nbytes: int

    def floor_us(self, tokens: int, chip: Chip, cores: int) -> float:
        """Microseconds that they cannot be below on `cores` cores: their operations at the rate that a long GEMM sustains, or
        their weights read once from HBM.
        """
        rate = cores * float(chip.tensor_peak_tflops) * float(chip.tensor_sustained_fraction)
        compute = 2 * self.weights * tokens / rate / 1e6
        return max(compute, self.nbytes / (cores * chip.dma_engines * chip.dma_engine_bytes_per_ns) / 1e3)


def linear_work(model: Any) -> LinearWork | None:
    """That of the first decoder layer; None if it has matrices that are no `nn.Linear` (experts), so that it is not known."""
    layers = getattr(model, "layers", None)
    if not isinstance(layers, torch.nn.ModuleList) or not len(layers):
        return None
    linear = [module.weight for module in layers[0].modules() if isinstance(module, torch.nn.Linear)]
    if not linear or sum(p.ndim > 1 for p in layers[0].parameters()) != len(linear):
        return None
    return LinearWork(weights=sum(w.numel() for w in linear), nbytes=sum(w.numel() * w.element_size() for w in linear))


def shares(row: Mapping[str, Any], work: LinearWork, tokens: int, chip: Chip) -> dict[str, float]:
    """What a row of `nki_hf.tools.bench_rows.run` gains: the floor, and the share of attention at most, ours and eager-like."""
    floor = work.floor_us(tokens, chip, int(row["cores"]))
    return {
        "linear_floor_us_simulated": floor,
        **{
            f"{kind}_share_simulated": row[f"{kind}_us_simulated"] / (row[f"{kind}_us_simulated"] + floor)
            for kind in ("nki", "eager_like")
        },
    }
