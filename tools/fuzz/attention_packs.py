"""Random problems of FlashAttention's functions, of Transformers' packed rows, and of parts of the keys that are merged."""

from __future__ import annotations

from math import nan
from typing import Any

import numpy as np
import torch

from tools.fuzz.attention_problems import PLAIN, Case, simpler_problems

__all__ = ["cached", "draw_pack", "paged", "seen_in_pack", "simpler_packs", "starts"]

_LENGTHS = (0, 1, 1, 2, 3, 17, 33, 64, 100, 127, 128, 129, 200, 257, 300, 513, 700)


def draw_pack(seed: int) -> Case:
    """A problem of that seed.

    `lengths`: rows and keys of each sequence of a pack; `spare`: rows and keys behind the last. `pages`: keys of a page, for
    `flash_attn_varlen_func` and the cache. `cache`: new keys, what turns them (rotary), first keys, rows of the cache.
    `parts`: keys at which the keys are cut.
    """
    rng = np.random.default_rng([seed, 6])

    def one_of(*items: Any) -> Any:
        return items[int(rng.integers(len(items)))]

    def rarely(share: float = 0.1) -> bool:
        return bool(rng.random() < share)

    fronts = ("flash", "varlen", "varlen", "kvcache", "kvcache", "transformers", "merge", "merge")
    case = {**PLAIN, "seed": seed, "front": one_of(*fronts)}
    case["dtype"] = one_of("float32", "bfloat16", "bfloat16", "float16")
    case["heads_kv"], case["group"] = one_of((1, 1), (1, 2), (2, 1), (2, 3), (1, 4))
    case["head_dim"] = one_of(8, 16, 64, int(rng.integers(1, 130)), 128)
    case["head_dim_v"] = one_of(case["head_dim"], case["head_dim"], int(rng.integers(1, 100)))
    case["values"] = one_of("normal", "normal", "normal", "wide", "outlier_key", "negative")
    case["layout"] = one_of("plain", "plain", "transposed", "sliced")
    case["causal"] = rarely(0.6)
    if case["front"] != "transformers":
        case["window"] = one_of(None, None, int(rng.integers(1, 50)), int(rng.integers(1, 400)), 2**40 if rarely() else 129)
        case["ahead"] = None if case["causal"] else one_of(None, None, 1, int(rng.integers(1, 300)))
    case["scale"] = one_of(None, None, float(rng.uniform(0.05, 1.5)), -0.5)
    case["softcap"] = one_of(None, None, None, float(rng.uniform(0.5, 50)))
    case["sink"] = one_of(None, None, "normal", "minus_inf")
    case["lse"] = case["front"] not in ("transformers",) and rarely(0.5)
    case["gradients"] = case["front"] != "kvcache" and rarely(0.35)
    case["frozen"] = one_of("", "", "", "q", "kv") if case["gradients"] else ""
    case["strict"] = rarely(0.3)
    case["chip"], case["lnc"] = one_of(("trn2", None), ("trn2", 1), ("trn3", None), ("trn1", None), ("trn2", 2))
    case["recorded"] = one_of("own", "own", "other")
    if case["front"] in ("varlen", "transformers"):
        _draw_lengths(case, rng)
    elif case["front"] == "kvcache":
        _draw_cache(case, rng)
    else:
        case["batch_q"] = case["batch_kv"] = one_of(1, 1, 2, 3)
        case["seqlen_q"] = one_of(1, 1, int(rng.integers(1, 40)), int(rng.integers(1, 300)), 128)
        case["seqlen_kv"] = one_of(case["seqlen_q"], int(rng.integers(1, 400)), 513)
    if case["front"] == "merge":
        case["lse"] = True
        case["q_offset"] = one_of(None, None, int(rng.integers(-20, 300)))
        case["mask"] = one_of(None, None, "bool", "float", "padding")
        case["mask_axes"] = tuple(int(rng.integers(2)) for _ in range(3))
        cuts = sorted({int(each) for each in rng.integers(0, case["seqlen_kv"] + 1, int(rng.integers(1, 4)))})
        case["parts"] = tuple(cut for cut in cuts if 0 < cut < case["seqlen_kv"])
        case["strict"] = False
    return case


def _draw_lengths(case: Case, rng: np.random.Generator) -> None:
    alike = case["front"] == "transformers" and rng.random() < 0.6
    kind, lengths = int(rng.integers(4)), []
    for _ in range(int(rng.integers(1, 9))):
        keys = int(rng.choice(_LENGTHS)) if kind else int(rng.integers(0, 60))
        rows = keys if alike or kind < 2 else 1 if kind == 2 and rng.random() < 0.7 else int(rng.choice(_LENGTHS[:10]))
        lengths.append((rows, keys))
        if sum(rows for rows, _ in lengths) > 500:
            break
    case["lengths"] = tuple(lengths)
    case["spare"] = int(rng.choice([0, 0, 0, 5]))
    if case["front"] == "varlen" and rng.random() < 0.25:
        case["pages"], case["gradients"] = int(rng.choice([1, 7, 16, 128])), False
    if sum(rows for rows, _ in lengths) + case["spare"] == 0:
        case["spare"] = 5
    case["seqlen_q"], case["seqlen_kv"] = _totals(case)


def _totals(case: Case) -> tuple[int, int]:
    rows, keys = (sum(pair[n] for pair in case["lengths"]) + case["spare"] for n in (0, 1))
    return rows, max(1, keys)


def _draw_cache(case: Case, rng: np.random.Generator) -> None:
    case["batch_q"] = case["batch_kv"] = int(rng.integers(1, 4))
    case["seqlen_q"] = int(rng.choice([1, 1, 1, 2, 5, 20]))
    new = int(rng.choice([0, case["seqlen_q"], case["seqlen_q"], 3]))
    case["pages"] = int(rng.choice([1, 7, 16, 64])) if rng.random() < 0.4 else None
    capacity = new + int(rng.integers(1, 300))
    if case["pages"] is not None:
        capacity = -(-capacity // case["pages"]) * case["pages"]
    case["seqlen_kv"] = capacity
    case["cache"] = {
        "new": new,
        "rotary": str(rng.choice(["interleaved", "halves"])) if new and case["head_dim"] > 1 and rng.random() < 0.6 else None,
        "leftpad": case["pages"] is None and bool(rng.random() < 0.4),
        "rows": case["pages"] is None and bool(rng.random() < 0.4),
        "one_length": bool(rng.random() < 0.2),
    }
    if case["cache"]["rotary"] and rng.random() < 0.3:  # rows that nothing puts in an order all stand at one place
        case.update(causal=False, window=None, ahead=None, seqlen_q=int(rng.choice([2, 5])))


def simpler_packs(case: Case) -> list[Case]:
    """Simpler problems, also with a sequence less or shorter ones."""
    found, cache = simpler_problems(case), case["cache"]
    pairs = case["lengths"] or ()
    found += [{**case, "batch_q": 1, "batch_kv": 1}] * (case["batch_q"] > 1)
    found = [each for each in found if each["batch_q"] == each["batch_kv"]]  # FlashAttention broadcasts nothing
    if cache is not None:
        found = [
            each
            for each in found
            if each["seqlen_kv"] >= cache["new"] and (case["pages"] is None or each["seqlen_kv"] == case["seqlen_kv"])
        ]
        found += [
            {**case, "cache": {**cache, name: None if name == "rotary" else False}}
            for name in ("rotary", "leftpad", "rows")
            if cache[name]
        ]
    if case["parts"] is not None:
        found = [each for each in found if all(cut < each["seqlen_kv"] for cut in each["parts"])]
        found += [{**case, "parts": (*case["parts"][:n], *case["parts"][n + 1 :])} for n in range(len(case["parts"]))]
    for n, (rows, keys) in enumerate(pairs):
        for instead in ((), ((rows // 2, keys // 2),), ((rows - 1, keys - 1),)):
            lengths = (*pairs[:n], *instead, *pairs[n + 1 :])
            if lengths and lengths != pairs and min(map(min, lengths)) >= 0:
                shorter = {**case, "lengths": lengths}
                shorter["seqlen_q"], shorter["seqlen_kv"] = _totals(shorter)
                found.append(shorter)
    if case["spare"]:
        none = {**case, "spare": 0}
        none["seqlen_q"], none["seqlen_kv"] = _totals(none)
        found.append(none)
    return [each for each in found if each["seqlen_q"]]


def starts(case: Case) -> tuple[torch.Tensor, torch.Tensor]:
    """First row and first key of each sequence and the totals."""
    sums = [np.cumsum([0, *(pair[n] for pair in case["lengths"])]) for n in (0, 1)]
    rows, keys = (torch.from_numpy(each.astype(np.int32 if case["seed"] % 3 else np.int64)) for each in sums)
    return rows, keys


def seen_in_pack(case: Case) -> torch.Tensor:
    """Bool `[seqlen_q, seqlen_kv]`: the last row of a sequence stands at its last key."""
    seen = torch.zeros(case["seqlen_q"], case["seqlen_kv"], dtype=torch.bool)
    row = key = 0
    window, ahead = case["window"], 1 if case["causal"] else case["ahead"]
    for rows, keys in case["lengths"]:
        place = np.arange(rows)[:, None] + keys - rows
        other = np.arange(keys)[None]
        inside = np.ones((rows, keys), bool)
        if window is not None:
            inside &= other > place - window
        if ahead is not None:
            inside &= other < place + ahead
        seen[row : row + rows, key : key + keys] = torch.from_numpy(inside)
        row, key = row + rows, key + keys
    return seen


def paged(case: Case, generator: torch.Generator) -> dict[str, Any]:
    """The pages of a pack's sequences in any order: `table`, and `pages`, which makes them of keys `[total, heads, width]`."""
    page = case["pages"]
    counts = [-(-keys // page) for _, keys in case["lengths"]]
    order = torch.randperm(sum(counts) + 3, generator=generator)
    table = torch.full((len(counts), max(1, *counts) + 1), 2**31 - 1, dtype=torch.int32)  # what no row sees may be any number
    used = 0
    for n, count in enumerate(counts):
        table[n, :count] = order[used : used + count]
        used += count

    def pages(tokens: torch.Tensor) -> torch.Tensor:
        whole = torch.full((len(order), page, *tokens.shape[1:]), nan, dtype=tokens.dtype)
        first = 0
        for n, (_, keys) in enumerate(case["lengths"]):
            for begin in range(0, keys, page):
                part = tokens[first + begin : first + min(begin + page, keys)]
                whole[int(table[n, begin // page]), : len(part)] = part
            first += keys
        return whole

    return {"table": table, "pages": pages}


def cached(case: Case, generator: torch.Generator, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> dict[str, Any]:
    """A cache and new tokens: arguments of `flash_attn_with_kvcache`, the caches before and after, and what they mean: `meant`
    q and k `[batch, heads, ...]` after their rotation, and `seen` bool `[batch, 1, seqlen_q, capacity]`.

    q, k, v: `[batch, heads, ...]` in the dtype; k and v are what the cache holds, new tokens included, before a rotation.
    """
    options, batch, capacity = case["cache"], case["batch_q"], case["seqlen_kv"]
    new = options["new"]
    before = torch.randint(0, capacity - new + 1, (batch,), generator=generator)
    if options["one_length"]:
        before[:] = before[0].clone()
    first = torch.zeros(batch, dtype=torch.int64)
    if options["leftpad"]:
        first = torch.stack([torch.randint(0, int(n) + 1, (), generator=generator) for n in before])
    causal_like = case["causal"] or case["window"] is not None or case["ahead"] is not None
    arguments: dict[str, Any] = {"cache_seqlens": int(before[0]) if options["one_length"] else before.to(torch.int32)}
    meant_q, meant_k = q.clone(), k.clone()
    fresh = torch.arange(new) + before[:, None]
    at = torch.arange(batch)[:, None].expand(batch, new)
    if new:
        arguments.update(k=k[at, :, fresh].clone(), v=v[at, :, fresh].clone())
    if options["rotary"] is not None:
        half = max(1, case["head_dim"] // 4)
        length = capacity + case["seqlen_q"] + new
        angles = torch.rand((length, half), generator=generator, dtype=torch.float64).float() * 6
        arguments.update(rotary_cos=angles.cos(), rotary_sin=angles.sin())
        arguments["rotary_interleaved"] = options["rotary"] == "interleaved"
        places = before[:, None] + torch.arange(case["seqlen_q"]) * int(causal_like)
        meant_q = _turned(q.transpose(1, 2), angles, places, options["rotary"]).transpose(1, 2)
        meant_k[at, :, fresh] = _turned(k[at, :, fresh], angles, fresh, options["rotary"])
    live = before + new
    place = (live - case["seqlen_q"])[:, None] + torch.arange(case["seqlen_q"])
    slot = torch.arange(capacity)
    seen = ((slot >= first[:, None]) & (slot < live[:, None]))[:, None].expand(batch, case["seqlen_q"], capacity)
    window, ahead = case["window"], 1 if case["causal"] else case["ahead"]
    if window is not None:
        seen = seen & (slot > place[..., None] - window)
    if ahead is not None:
        seen = seen & (slot < place[..., None] + ahead)
    caches, after = _caches(case, generator, (k, v), (meant_k, v), first, before, live, arguments)
    if options["leftpad"]:
        arguments["cache_leftpad"] = first.to(torch.int32)
    return {
        "q": q.transpose(1, 2),
        "caches": caches,
        "after": after,
        "arguments": arguments,
        "meant": (meant_q, meant_k),
        "seen": seen[:, None],
    }


def _caches(
    case: Case, generator: torch.Generator, given: Any, meant: Any, first: Any, before: Any, live: Any, arguments: Any
) -> Any:
    """Caches before and after the call; slots that hold no key, behind the last or before the first, are NaN."""
    batch, capacity, page = case["batch_q"], case["seqlen_kv"], case["pages"]
    rows = torch.randperm(batch + 2, generator=generator)[:batch] if case["cache"]["rows"] else torch.arange(batch)
    if case["cache"]["rows"]:
        arguments["cache_batch_idx"] = rows.to(torch.int32)
    blocks = capacity if page is None else page
    count = 1 if page is None else capacity // page
    order = torch.randperm(batch * count, generator=generator).view(batch, count)
    if page is not None:
        arguments["block_table"] = order.to(torch.int32)
    made = []
    for tokens, ends in ((given, before), (meant, live)):
        both = []
        for each in tokens:
            token_major = each.transpose(1, 2)
            size = (batch * count if page is not None else batch + 2, blocks, *token_major.shape[2:])
            cache = torch.full(size, nan, dtype=each.dtype)
            for n in range(batch):
                held = token_major[n].clone()
                held[int(ends[n]) :] = nan
                held[: int(first[n])] = nan
                if page is None:
                    cache[rows[n]] = held
                else:
                    cache[order[n]] = held.view(count, page, *held.shape[1:])
            both.append(cache)
        made.append(both)
    return made


def _turned(tokens: torch.Tensor, angles: torch.Tensor, places: torch.Tensor, kind: str) -> torch.Tensor:
    """Tokens `[batch, seqlen, heads, head_dim]` rotated pair by pair, in float32 as documented."""
    half = angles.shape[1]
    found = tokens.float().numpy().copy()
    cosine, sine = (each.numpy()[places.numpy()][:, :, None] for each in (angles.cos(), angles.sin()))
    for n in range(half):
        one, two = (2 * n, 2 * n + 1) if kind == "interleaved" else (n, half + n)
        a, b = found[..., one].copy(), found[..., two].copy()
        found[..., one] = a * cosine[..., n] - b * sine[..., n]
        found[..., two] = a * sine[..., n] + b * cosine[..., n]
    return torch.from_numpy(found).to(tokens.dtype)
