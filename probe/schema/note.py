"""What a reader of a capture has to say of it: a code with values, for the analysis to put in words.

The code stands in the catalogue of sentences (``analyze/wording``); its first word says what the note means to
whoever reads a result: ``doubt``, ``unknown``, ``missing``, ``assumed``, ``scope`` or ``counted``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Note:
    """One thing that is missing, damaged or otherwise worth knowing."""

    code: str
    """Where its sentence stands: ``missing.ranks``."""
    values: Mapping[str, Any]
    """What the sentence names: numbers in SI units or ns, ranks, texts of the system, other notes."""


def note(code: str, **values: Any) -> Note:
    """Return a note; the test of the catalogue holds its code and the names of its values."""
    return Note(code, values)


def of_host(host: str) -> Note:
    """Return who a note of a host is about."""
    return note("who.host", host=host)


def of_ranks(ranks: Sequence[int], attempt: int | None = None) -> Note:
    """Return who a note of ranks is about.

    Args:
        ranks: In their order.
        attempt: The attempt of the job that they recorded it in; None where there is one only.
    """
    if attempt is None:
        return note("who.ranks", ranks=list(ranks))
    return note("who.ranks_in_attempt", ranks=list(ranks), attempt=attempt)
