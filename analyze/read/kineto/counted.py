"""What is counted while the communication of a rank is read, as limits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum

from ...wording.limits import Limit
from ...wording.message import message


class Counted(StrEnum):
    """Communication that lacks something."""

    FOREIGN = "foreign"
    GROUPED_TRANSFERS = "grouped_transfers"
    NO_PEER = "no_peer"
    NO_GROUP = "no_group"
    NO_SIZE = "no_size"
    NO_PEER_ON_HOST = "no_peer_on_host"
    NO_SIZE_ON_HOST = "no_size_on_host"


def counted_limits(ranks: Iterable[Mapping[Counted, int]]) -> Iterator[Limit]:
    """Yield one limit for all that lack the same, on all ranks together."""
    total: Counter[Counted] = Counter()
    for one in ranks:
        total.update(one)
    for what, count in total.items():
        yield _limit(what, count)


def _limit(what: Counted, count: int) -> Limit:
    return {
        Counted.FOREIGN: message("missing.foreign_kernels", count=count),
        Counted.GROUPED_TRANSFERS: message("missing.grouped_transfers", count=count),
        Counted.NO_PEER: message("missing.transfers_without_peer", count=count),
        Counted.NO_GROUP: message("assumed.stream_order", count=count),
        Counted.NO_SIZE: message("missing.sizes", count=count),
        Counted.NO_PEER_ON_HOST: message("missing.peers_on_host", count=count),
        Counted.NO_SIZE_ON_HOST: message("missing.sizes_on_host", count=count),
    }[what]
