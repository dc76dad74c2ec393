"""Products of fp8 and MX: two rows of fp8 at once, quantisation, and scales per block."""

from __future__ import annotations

from typing import Any

import numpy as np

from nki_hf.sim import isa as nisa
from nki_hf.sim import language as nl
from tools.fuzz.kernel_programs import Step
from tools.fuzz.rare_products import WIDTH, bank_of, copied_out, product
from tools.fuzz.rare_site import Array, Draw, Rare, Seen, Site, as_type, typed

__all__ = ["LOW_PRECISION"]

Result = tuple[Array, Any]


def _draw_rows(draw: Draw) -> Step | None:
    if draw.program["chip"] == "trn1":
        return None
    ours = ("float8_e5m2", "float8_e4m3fn") if draw.program["chip"] == "trn3" else ("float8_e5m2",)
    return {"kind": draw.pick(*ours), "by_name": draw.flag()}


def _issue_rows(site: Site) -> Any:
    """`double_row`: the contraction runs over partitions and pairs of rows."""
    kind = getattr(nl, site.step["kind"])
    one, two = site.fresh(site.p, 2, site.n, dtype=kind), site.fresh(site.p, 2, WIDTH, dtype=kind)
    nisa.tensor_scalar(dst=one[:, 0], data=site.flat(), op0=nl.minimum, operand0=8.0, op1=nl.maximum, operand1=-8.0)
    nisa.tensor_scalar(dst=one[:, 1], data=one[:, 0], op0=nl.multiply, operand0=0.5)
    nisa.tensor_copy(dst=two, src=site.ints(site.p, 2 * WIDTH, 9, least=-4))
    bank = bank_of(site, site.n, WIDTH)
    mode: Any = "double_row" if site.step["by_name"] else nisa.matmul_perf_mode.double_row
    nisa.nc_matmul(dst=bank, stationary=one, moving=two, perf_mode=mode)
    return copied_out(site, bank)


def _model_rows(seen: Seen) -> Result:
    kind = seen.step["kind"]
    first = typed(np.clip(seen.data.astype(np.float32), -8, 8), kind)
    second = typed(first.astype(np.float32) * np.float32(0.5), kind)
    two = seen.ints(seen.p, 2 * WIDTH, 9, least=-4).astype(np.float64)
    one = np.concatenate([first.astype(np.float64), second.astype(np.float64)])
    return product(one, np.concatenate([two[:, :WIDTH], two[:, WIDTH:]]))


_LARGEST = {"float8_e4m3fn": 8, "float8_e5m2": 15}
"""Exponents of the largest numbers (OCP Microscaling Formats 1.0, table 1)."""
_FP4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
"""Of float4_e2m1, without its sign."""


def _mx_room(draw: Draw) -> bool:
    return draw.program["chip"] == "trn3" and draw.program["shape"][0] % 32 == 0


def _quantized(x: Array, kind: str) -> tuple[Array, Array]:
    """Codes uint8 `[p, n]` and scale exponents int `[p / 8, n / 4]`: a group is 8 partitions of 4 elements."""
    groups = x.reshape(len(x) // 8, 8, -1, 4)
    largest = np.abs(groups).max((1, 3))
    exponent = np.floor(np.log2(np.where(largest > 0, largest, 1.0))) - (_LARGEST[kind] - 1)
    exponent = np.where(largest > 0, exponent, -127).clip(-127, 127)
    scaled = groups / 2.0 ** exponent[:, None, :, None]
    return typed(scaled, kind).view(np.uint8).reshape(x.shape), exponent.astype(np.int64)


def _draw_quantized(draw: Draw) -> Step | None:
    if not _mx_room(draw):
        return None
    return {
        "kind": draw.pick("float8_e4m3fn", "float8_e5m2"),
        "shown": draw.pick("codes", "scales"),
        "source": draw.pick("bfloat16", "float16"),
        "spread": draw.pick(1.0, 1e-3, 300.0),
        "codes": draw.flag(),
    }


def _issue_quantized(site: Site) -> Any:
    codes, scales = _mx_of(site, site.step["kind"], site.step["spread"])
    if site.step["shown"] == "codes":
        return flat_words(site, codes)
    return scales


def flat_words(site: Site, codes: Any) -> Any:
    """Packed elements as words of 32 bits."""
    found = site.fresh(*codes.shape, dtype=nl.uint32)
    nisa.dma_copy(dst=found, src=codes.view(nl.uint32))
    return found


def _mx_of(site: Site, kind: str, spread: float) -> tuple[Any, Any]:
    """Codes and scales of whole numbers and the data, `[128 or less, 16]`; rows of the scales that no group has hold 7."""
    p, columns = site.program["shape"][0], 4 * (WIDTH // 2)
    source = site.fresh(p, columns, dtype=getattr(nl, site.step["source"]))
    numbers = site.ints(p, columns, 401, least=-200)
    nisa.tensor_scalar(dst=source, data=numbers, op0=nl.multiply, operand0=spread)
    codes = site.fresh(p, columns // 4, dtype=getattr(nl, f"{kind}_x4"))
    scales = site.fresh(p, columns // 4, dtype=nl.uint8)
    nisa.memset(dst=scales, value=7)
    if site.step["codes"]:
        nisa.quantize_mx(dst=codes, src=source, dst_scale=scales)
    else:
        nisa.quantize_mx(dst=codes, src=source, dst_scale=scales.view(nl.float8_e8m0fnu))
    return codes, scales


def _mx_source(seen: Seen, spread: float) -> Array:
    p = len(seen.state["noise"])
    numbers = seen.ints(p, 4 * (WIDTH // 2), 401, least=-200).astype(np.float32) * np.float32(spread)
    return typed(numbers, seen.step["source"]).astype(np.float64)


def _model_quantized(seen: Seen) -> Result:
    codes, exponent = _quantized(_mx_source(seen, seen.step["spread"]), seen.step["kind"])
    if seen.step["shown"] == "codes":
        return codes.view(np.uint32), 0
    found = np.full((len(codes), codes.shape[1] // 4), 7)
    for group, row in enumerate(exponent):
        found[group // 4 * 32 + group % 4] = row + 127
    return found, 0


def _draw_mx(draw: Draw) -> Step | None:
    if not _mx_room(draw):
        return None
    return {
        "kind": draw.pick("float4_e2m1fn", "float8_e4m3fn", "float8_e5m2"),
        "source": "bfloat16",
        "codes": draw.flag(),
        "again": draw.pick(None, None, None, True, False),
        "part": draw.flag(),
        "half": draw.flag(),
    }


def _issue_mx(site: Site) -> Any:
    """A product of quantised numbers, or of any codes of 4 bits, and any of those; the scales of the second are drawn too."""
    p, step = site.program["shape"][0], site.step
    two, two_scales = _any_codes(site, p, 6)
    if step["kind"] == "float4_e2m1fn":
        one, one_scales = _any_codes(site, p, 4)
    else:
        one, one_scales = _mx_of(site, step["kind"], 1.0)
    rows = p
    placed: dict[str, Any] = {}
    if step["part"] and p >= 64:
        rows = 32
        placed = {"tile_position": (0, 0), "tile_size": (32, 128)}
    bank = bank_of(site, one.shape[1], two.shape[1], nl.bfloat16 if step["half"] else nl.float32)
    for number in range(2 if step["again"] is not None else 1):
        told = {} if step["again"] is None else {"accumulate": step["again"] if number else False}
        nisa.nc_matmul_mx(
            dst=bank,
            stationary=one[0:rows],
            moving=two[0:rows],
            stationary_scale=one_scales[0:rows],
            moving_scale=two_scales[0:rows],
            **placed,
            **told,
        )
    return copied_out(site, bank)


def _any_codes(site: Site, p: int, columns: int) -> tuple[Any, Any]:
    words = site.fresh(p, columns, dtype=nl.uint16)
    nisa.tensor_copy(dst=words, src=site.tiles["noise"][0:p, 0:columns])
    return words.view(nl.float4_e2m1fn_x4), site.ints(p, columns, 9, nl.uint8, least=123)


def _codes_meant(seen: Seen, columns: int) -> Array:
    """Elements `[p, columns, 4]`, the first in the lowest bits, times their scales."""
    words = seen.state["noise"][:, :columns].astype(np.int64)
    codes = words[:, :, None] >> np.arange(0, 16, 4) & 15
    values = np.where(codes & 8, -1.0, 1.0) * _FP4[codes & 7]
    return values * 2.0 ** (_spread(seen.ints(len(words), columns, 9, least=123)) - 127.0)[:, :, None]


def _spread(scales: Array) -> Array:
    """Of each partition the scale of its group, which lies in one of the first four rows of its 32."""
    p = np.arange(len(scales))
    return scales[p // 32 * 32 + p % 32 // 8]


def _model_mx(seen: Seen) -> Result:
    step, two = seen.step, _codes_meant(seen, 6)
    if step["kind"] == "float4_e2m1fn":
        one = _codes_meant(seen, 4)
    else:
        codes, exponent = _quantized(_mx_source(seen, 1.0), step["kind"])
        one = codes.view(as_type(step["kind"])).astype(np.float64).reshape(len(codes), -1, 4)
        one = one * 2.0 ** np.repeat(exponent, 8, 0)[:, :, None]
    if step["part"] and len(one) >= 64:
        one, two = one[:32], two[:32]
    pair = [each.transpose(0, 2, 1).reshape(-1, each.shape[1]) for each in (one, two)]
    found, slack = product(*pair)
    if step["again"] is True:
        found, slack = 2 * found, 4 * slack
    # A sum in bfloat16 is rounded each time.
    return found, slack + (2.0**-8 * np.abs(found) if step["half"] and step["again"] else 0.0)


LOW_PRECISION = {
    "double rows": Rare(_draw_rows, _issue_rows, _model_rows),
    "quantized": Rare(_draw_quantized, _issue_quantized, _model_quantized),
    "mx": Rare(_draw_mx, _issue_mx, _model_mx),
}
