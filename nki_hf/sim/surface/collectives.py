"""`nki.collectives`: every public name of NKI 0.6."""

from __future__ import annotations

from nki_hf.sim.surface.entry import Entry, exact, refused

__all__ = ["COLLECTIVES"]

_WHY = "a simulated launch has one device"

COLLECTIVES: dict[str, Entry] = {
    "ReplicaGroup": exact(),
    "all_gather": refused("(srcs, dsts, replica_group, collective_dim, priority=None, name=None)", _WHY),
    "all_gather_v": refused(
        "(srcs, dsts, replica_group, metadata_tensor, recv_counts_known=False, has_rdispls=False, priority=None, name=None)",
        _WHY,
    ),
    "all_reduce": refused("(srcs, dsts, replica_group, op, priority=None, name=None)", _WHY),
    "all_to_all": refused("(srcs, dsts, replica_group, collective_dim, priority=None, name=None)", _WHY),
    "all_to_all_v": refused(
        "(srcs, dsts, replica_group, metadata_tensor, recv_counts_known=False, has_rdispls=False, priority=None, name=None)",
        _WHY,
    ),
    "collective_permute": refused("(srcs, dsts, source_target_pairs, priority=None, name=None)", _WHY),
    "collective_permute_implicit": refused(
        "(srcs_by_channel, dsts_by_channel, replica_group, channel_ids=(0,), priority=None, name=None)",
        _WHY,
    ),
    "collective_permute_implicit_current_processing_rank_id": refused(
        "(iteration_id, replica_group, channel_id=0, name=None)",
        _WHY,
    ),
    "collective_permute_implicit_reduce": refused(
        "(srcs0_by_channel, srcs1_by_channel, dsts_by_channel, replica_group, op, channel_ids=(0,), priority=None, name=None)",
        _WHY,
    ),
    "rank_id": refused("(name=None)", _WHY),
    "reduce_scatter": refused("(srcs, dsts, replica_group, collective_dim, op, priority=None, name=None)", _WHY),
}
