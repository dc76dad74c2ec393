"""Rules of statistics, top-8 searches, shuffles, gathers and random numbers."""

from __future__ import annotations

from nki_hf.sim.constraints.families import isa
from nki_hf.sim.constraints.operand import engine_name, first_partition, is_tile, show
from nki_hf.sim.constraints.rule import Operands, Violation, rule
from nki_hf.sim.tensors.tensor import NkiTensor

_EIGHT = ("max8", "nc_find_index8")
_KEEP = 255


@rule("bn_stats", "shape", "at most 512 elements per partition in data", isa("bn_stats"))
def _stats_size(o: Operands) -> Violation:
    if o.data.free_size > o.machine.chip.bn_stats_free_max:
        return f"data {show(o.data)} has {o.data.free_size:,} elements per partition", "Use one bn_stats per 512 and bn_aggr"
    return None


@rule("bn_stats", "shape", "dst has 6 elements per partition and the partitions of data", isa("bn_stats"))
def _stats_result(o: Operands) -> Violation:
    if (o.dst.partitions, o.dst.free_size) != (o.data.partitions, 6):
        return f"dst is {list(o.dst.shape)} and data {list(o.data.shape)}"
    return None


@rule("bn_aggr", "shape", "data has a multiple of 3 elements per partition", isa("bn_aggr"))
def _triples(o: Operands) -> Violation:
    return f"data {show(o.data)}" if o.data.free_size % 3 or o.data.free_size == 0 else None


@rule("bn_aggr", "shape", "dst has 2 elements per partition and the partitions of data", isa("bn_aggr"))
def _aggregate(o: Operands) -> Violation:
    if (o.dst.partitions, o.dst.free_size) != (o.data.partitions, 2):
        return f"dst is {list(o.dst.shape)} and data {list(o.data.shape)}"
    return None


def _searched(o: Operands) -> NkiTensor:
    tile: NkiTensor = o.src if o.opcode == "max8" else o.data
    return tile


@rule((*_EIGHT, "nc_match_replace8"), "shape", "8 to 16,384 elements per partition are searched", isa("max8"))
def _search_size(o: Operands) -> Violation:
    tile = _searched(o)
    return f"{show(tile)} is searched" if not 8 <= tile.free_size <= o.machine.chip.search_free_max else None


@rule((*_EIGHT, "nc_match_replace8"), "shape", "the searched tile has at most 3 axes", isa("max8"))
def _search_axes(o: Operands) -> Violation:
    tile = _searched(o)
    return f"{show(tile)} is searched" if tile.ndim > 3 else None


@rule(_EIGHT, "shape", "dst is [partitions, 8]", isa("max8"))
def _eight_results(o: Operands) -> Violation:
    return f"dst is {list(o.dst.shape)}" if (o.dst.partitions, o.dst.free_size) != (_searched(o).partitions, 8) else None


@rule(("nc_find_index8", "nc_match_replace8"), "shape", "vals has 8 elements per partition", isa("nc_find_index8"))
def _eight_values(o: Operands) -> Violation:
    return f"vals {show(o.vals)}" if o.vals.free_size != 8 or o.vals.partitions != o.data.partitions else None


@rule("nc_stream_shuffle", "argument", "shuffle_mask has 32 entries, each 0 to 31 or 255", isa("nc_stream_shuffle"))
def _mask(o: Operands) -> Violation:
    mask = list(o.shuffle_mask)
    if len(mask) != 32:
        return f"shuffle_mask has {len(mask)} entries"
    wrong = [entry for entry in mask if entry != _KEEP and not 0 <= entry < 32]
    return f"shuffle_mask has the entry {wrong[0]}" if wrong else None


@rule("nc_stream_shuffle", "shape", "dst and src have equal elements per partition", isa("nc_stream_shuffle"))
def _shuffle_size(o: Operands) -> Violation:
    return f"dst {show(o.dst)} and src {show(o.src)}" if o.dst.free_size != o.src.free_size else None


@rule(
    "nc_stream_shuffle",
    "placement",
    "with 96 or 128 active partitions both start at 0, with 64 at 0 or 64, with 32 at 0, 32, 64 or 96",
    isa("nc_stream_shuffle"),
)
def _shuffle_start(o: Operands) -> Violation:
    active = -(-max(o.src.partitions, o.dst.partitions) // 32) * 32
    step = 128 if active > 64 else active
    for name, tile in o.tiles(("src", "dst")):
        if first_partition(tile) % step:
            return f"{name} {show(tile)} starts at partition {first_partition(tile)} with {active} active"
    return None


@rule("local_gather", "shape", "src_buffer and index have the same partitions, a multiple of 16", isa("local_gather"))
def _gather_partitions(o: Operands) -> Violation:
    if o.src_buffer.partitions != o.index.partitions or o.index.partitions % 16:
        return f"src_buffer {show(o.src_buffer)} and index {show(o.index)}"
    return None


@rule("local_gather", "argument", "num_elem_per_idx must be 1, 2, 4, 8, 16 or 32", isa("local_gather"))
def _gather_width(o: Operands) -> Violation:
    return f"num_elem_per_idx={o.num_elem_per_idx}" if o.num_elem_per_idx not in (1, 2, 4, 8, 16, 32) else None


@rule(
    "local_gather",
    "argument",
    "num_valid_indices is 1 or more, at most 4,096 per GpSimd core, and no more than index holds",
    isa("local_gather"),
)
def _gather_count(o: Operands) -> Violation:
    held = o.index.free_size * int(o.machine.chip.gpsimd_core_partitions)
    count = held if o.num_valid_indices is None else o.num_valid_indices
    fits = 1 <= count <= min(held, o.machine.chip.gather_indices_max)
    return None if fits else (f"num_valid_indices={count} of {held}", "Leave it out where the whole list counts")


@rule("nc_n_gather", "shape", "data, indices and dst have the same partitions", isa("nc_n_gather"))
def _gather_rows(o: Operands) -> Violation:
    return f"data {show(o.data)} and indices {show(o.indices)}" if o.data.partitions != o.indices.partitions else None


@rule(
    "nonzero_with_count",
    "shape",
    "dst has one element per partition more than src, and its partitions",
    isa("nonzero_with_count"),
)
def _count_slot(o: Operands) -> Violation:
    if (o.dst.partitions, o.dst.free_size) != (o.src.partitions, o.src.free_size + 1):
        return f"dst is {list(o.dst.shape)} and src {list(o.src.shape)}"
    return None


@rule("sequence_bounds", "shape", "segment_ids is [1, n] and dst [1, 2, n]", isa("sequence_bounds"))
def _bounds_shape(o: Operands) -> Violation:
    ids, dst = o.segment_ids, o.dst
    if ids.partitions != 1 or dst.partitions != 1 or dst.free_size != 2 * ids.free_size:
        return f"segment_ids is {list(ids.shape)} and dst {list(dst.shape)}"
    return None


@rule("topk", "argument", "8 <= n < 65,536, and 1 <= K <= n with K < 32,768", isa("topk"))
def _topk_counts(o: Operands) -> Violation:
    k = o.val_dst.free_size
    return f"n={o.n} and K={k}" if not (8 <= o.n < 65536 and 1 <= k <= o.n and k < 32768) else None


@rule("topk", "shape", "src holds n elements over 16 partitions, and its partitions are a multiple of 16", isa("topk"))
def _topk_source(o: Operands) -> Violation:
    return f"src {show(o.src)} with n={o.n}" if o.src.partitions % 16 or o.src.free_size * 16 < o.n else None


@rule("quantize_mx", "shape", "src has a multiple of 32 partitions and of 4 elements per partition", isa("quantize_mx"))
def _quantized_groups(o: Operands) -> Violation:
    return f"src {show(o.src)}" if o.src.partitions % 32 or o.src.free_size % 4 else None


@rule("quantize_mx", "shape", "dst has the partitions of src and a quarter of its elements", isa("quantize_mx"))
def _quantized_shape(o: Operands) -> Violation:
    if (o.dst.partitions, 4 * o.dst.free_size) != (o.src.partitions, o.src.free_size):
        return f"dst is {list(o.dst.shape)} and src {list(o.src.shape)}"
    return None


@rule("dropout", "dtype", "prob is float32 for integer data, else a float", isa("dropout"))
def _probability(o: Operands) -> Violation:
    if not is_tile(o.prob):
        return None
    allowed = o.prob.dtype.name == "float32" if o.data.dtype.is_integer else o.prob.dtype.is_float
    return None if allowed else f"prob {show(o.prob)} is {o.prob.dtype} for data of {o.data.dtype}"


@rule("dropout", "argument", "prob is a probability, between 0 and 1", isa("dropout"))
def _between_0_and_1(o: Operands) -> Violation:
    return f"prob={o.prob}" if not is_tile(o.prob) and not 0 <= o.prob <= 1 else None


@rule("rng", "generation", "rng runs on GpSimd from NeuronCore-v3 on", isa("rng"))
def _rng_engine(o: Operands) -> Violation:
    return f"engine=gpsimd on {o.machine.chip.name}" if engine_name(o.engine) == "gpsimd" and o.generation < 3 else None


@rule(
    ("rand_set_state", "rand_get_state"),
    "generation",
    "the Vector engine has this state from NeuronCore-v4 on",
    isa("rand_set_state"),
)
def _state_engine(o: Operands) -> Violation:
    return f"engine=vector on {o.machine.chip.name}" if engine_name(o.engine) == "vector" and o.generation < 4 else None


@rule(
    ("rand_set_state", "rand_get_state"), "shape", "6 elements per partition for GpSimd, 24 for Vector", isa("rand_set_state")
)
def _state_size(o: Operands) -> Violation:
    tile = o.src_seeds if o.opcode == "rand_set_state" else o.dst
    wanted = 24 if engine_name(o.engine) == "vector" else 6
    return f"{show(tile)} with engine={engine_name(o.engine)}" if tile.free_size != wanted else None


@rule("rand_get_state", "placement", "dst must be in SBUF before NeuronCore-v4", isa("rand_get_state"))
def _state_memory(o: Operands) -> Violation:
    return f"dst {show(o.dst)} is in psum on {o.machine.chip.name}" if o.dst.space == "psum" and o.generation < 4 else None


@rule("set_rng_seed", "shape", "src_seeds is [1, 1]", isa("set_rng_seed"))
def _seed_shape(o: Operands) -> Violation:
    return f"src_seeds {show(o.src_seeds)}" if o.src_seeds.size != 1 else None


@rule("rand2", "argument", "min must be below max", isa("rand2"))
def _ordered(o: Operands) -> Violation:
    low, high = o.arguments["min"], o.arguments["max"]
    return f"min={low} and max={high}" if not is_tile(low) and not is_tile(high) and not low < high else None
