"""What became of a run that was put into segments, as a document."""

from __future__ import annotations

from ...scale.compact import Compacted
from ...wording.message import message
from ..document import Block, Heading, Lines


def compacted_document(made: Compacted) -> list[Block]:
    """Return how many files there were and are, and what was removed."""
    written = message(
        "compacted.written",
        ranks=made.ranks,
        rows=made.rows,
        before=made.files_before,
        after=made.files_after,
    )
    size = message("compacted.size", before=made.bytes_before, after=made.bytes_after)
    dropped = message("compacted.dropped_none")
    if made.kept_steps is not None:
        dropped = message("compacted.dropped", rows=made.dropped_rows, steps=made.kept_steps.text)
    return [
        Heading(message("compacted.title", run=made.run.name)),
        Lines([written, size, dropped]),
    ]
