"""A file that is alone and names no world size, but communicates: other ranks are missing.

Taken for the only rank of its job, all of its communication would be time on the wire, for nobody could be waited
for. How many ranks there are is unknown; what it waited for is not in the capture.
"""

from __future__ import annotations

from collections.abc import Sequence

from .communication import RankCommunication

UNKNOWN_RANKS = 0
"""World size of a job of which nothing says how many ranks it has."""


def lacks_peers(found: Sequence[RankCommunication], *, is_named: bool, devices: int) -> bool:
    """Return whether a capture is a single rank that communicates with others which are not in it.

    Args:
        found: What each rank's file says of its communication.
        is_named: Whether a file names the world size.
        devices: How many devices the only rank uses; several may communicate among themselves.
    """
    return len(found) == 1 and not is_named and devices == 1 and bool(found[0].rows)
