"""Times, sizes and limits as a person reads them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshscope.probe.schema.printable import printable

from ...wording.limits import Limit, limit_texts
from ...wording.message import Message, message
from ...wording.words import is_missing
from ..document import Block, facts, section

_NAME_LENGTH = 60

RANKS_TITLE = "Ranks, by what repairing returns, then by excess, then by how long others waited"

NOT_RECORDED = "No kernels were recorded: what the devices did is not known."


def limits_section(limits: Sequence[Limit]) -> list[Block]:
    """Return the closing section that says what was not seen; nothing where all was."""
    return section("What this result could not see", facts(limit_texts(limits)))


def left_out(count: int, what: str) -> list[str]:
    """Return the note that a table goes on; nothing where it does not."""
    return [f"… and {count:,} more {what} (--format json has all)"] if count > 0 else []


def ranks_left_out(count: int) -> list[Message]:
    """Return the note that a table has more ranks; nothing where it has all."""
    return [message("report.more_ranks", count=count)] if count > 0 else []


def milliseconds(time_ns: float) -> str:
    """Return milliseconds; a wait of NumPy or pandas' own kind of missing is unknown."""
    return "unknown" if is_missing(time_ns) else f"{time_ns / 1e6:.3f}"


def shortened(name: str) -> str:
    """Return a name on one line; the kernel of a template is at its start."""
    line = printable(" ".join(name.split()))
    return line if len(line) <= _NAME_LENGTH else line[: _NAME_LENGTH - 1] + "…"


def size(value: Any) -> str:
    """Return bytes in GiB or MiB, or the word unknown."""
    if is_missing(value):
        return "unknown"
    return f"{value / 2**30:.2f} GiB" if value >= 2**30 else f"{value / 2**20:.1f} MiB"
