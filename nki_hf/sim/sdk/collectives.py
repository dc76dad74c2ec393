"""`nki.collectives`: communication between devices. Its names can be imported; using one says that it is not simulated."""

from __future__ import annotations

from typing import Any, NoReturn

from nki_hf.sim.faults import fault
from nki_hf.sim.objects import NKIObject

__all__ = [
    "ReplicaGroup",
    "all_gather",
    "all_gather_v",
    "all_reduce",
    "all_to_all",
    "all_to_all_v",
    "collective_permute",
    "collective_permute_implicit",
    "collective_permute_implicit_current_processing_rank_id",
    "collective_permute_implicit_reduce",
    "rank_id",
    "reduce_scatter",
]


class ReplicaGroup(NKIObject):
    """Groups of devices that communicate: a list of lists of ranks."""

    def __init__(self, replica_groups: Any = None) -> None:
        self.replica_groups = replica_groups


def _refuse(name: str) -> NoReturn:
    fault(
        "unsupported",
        name,
        "collectives are not simulated",
        limit="a simulated launch has one device",
        advice="Run the parts before and after it as kernels of their own",
    )


def all_reduce(srcs: Any, dsts: Any, replica_group: Any, op: Any, priority: Any = None, name: str | None = None) -> NoReturn:
    """Not simulated."""
    _refuse("all_reduce")


def all_gather(
    srcs: Any, dsts: Any, replica_group: Any, collective_dim: int, priority: Any = None, name: str | None = None
) -> NoReturn:
    """Not simulated."""
    _refuse("all_gather")


def all_gather_v(
    srcs: Any,
    dsts: Any,
    replica_group: Any,
    metadata_tensor: Any,
    recv_counts_known: bool = False,
    has_rdispls: bool = False,
    priority: Any = None,
    name: str | None = None,
) -> NoReturn:
    """Not simulated."""
    _refuse("all_gather_v")


def reduce_scatter(
    srcs: Any, dsts: Any, replica_group: Any, collective_dim: int, op: Any, priority: Any = None, name: str | None = None
) -> NoReturn:
    """Not simulated."""
    _refuse("reduce_scatter")


def all_to_all(
    srcs: Any, dsts: Any, replica_group: Any, collective_dim: int, priority: Any = None, name: str | None = None
) -> NoReturn:
    """Not simulated."""
    _refuse("all_to_all")


def all_to_all_v(
    srcs: Any,
    dsts: Any,
    replica_group: Any,
    metadata_tensor: Any,
    recv_counts_known: bool = False,
    has_rdispls: bool = False,
    priority: Any = None,
    name: str | None = None,
) -> NoReturn:
    """Not simulated."""
    _refuse("all_to_all_v")


def collective_permute(
    srcs: Any, dsts: Any, source_target_pairs: Any, priority: Any = None, name: str | None = None
) -> NoReturn:
    """Not simulated."""
    _refuse("collective_permute")


def collective_permute_implicit(
    srcs_by_channel: Any,
    dsts_by_channel: Any,
    replica_group: Any,
    channel_ids: Any = (0,),
    priority: Any = None,
    name: str | None = None,
) -> NoReturn:
    """Not simulated."""
    _refuse("collective_permute_implicit")


def collective_permute_implicit_reduce(
    srcs0_by_channel: Any,
    srcs1_by_channel: Any,
    dsts_by_channel: Any,
    replica_group: Any,
    op: Any,
    channel_ids: Any = (0,),
    priority: Any = None,
    name: str | None = None,
) -> NoReturn:
    """Not simulated."""
    _refuse("collective_permute_implicit_reduce")


def collective_permute_implicit_current_processing_rank_id(
    iteration_id: int, replica_group: Any, channel_id: int = 0, name: str | None = None
) -> NoReturn:
    """Not simulated."""
    _refuse("collective_permute_implicit_current_processing_rank_id")


def rank_id(name: str | None = None) -> NoReturn:
    """Not simulated."""
    _refuse("rank_id")
