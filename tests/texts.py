"""Limits and reasons as the sentences that people read."""

from __future__ import annotations

from typing import TypeVar

from meshscope.analyze.load.recorded import worded
from meshscope.analyze.wording.message import Text
from meshscope.probe.schema.note import Note

Limits = TypeVar("Limits", tuple[Text | Note, ...], list[Text | Note])


def texts(limits: Limits) -> Limits:
    """Return the sentences of limits, in their order; of a reader's notes those of the analysis."""
    said = (worded([one])[0] if isinstance(one, Note) else one for one in limits)
    return type(limits)(map(str, said))
