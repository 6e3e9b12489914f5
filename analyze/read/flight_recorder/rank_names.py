"""The rank of a dump: what it says itself, else what its file is called."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from meshscope.probe.schema.errors import TraceFormatError

from ...wording.message import message
from ..files import InputFile, rank_in_name
from .values import to_number

MAX_RANKS = 1 << 20
"""A larger number is no rank but something else, such as a date in a file name."""
_NAMED = re.compile(r"(?<!local)(?<!local[-_.])rank[-_. ]?(\d{1,10})(?!\d)", re.IGNORECASE)
_AT_END = re.compile(r"(\d+)(?:\.[A-Za-z]\w*)*$")


def rank_of(value: Mapping[str, Any], file: InputFile) -> int:
    """Return the rank of a dump.

    Args:
        value: What the dump holds.
        file: Its file. The number behind ``rank`` in its name counts, else the one at the end, as PyTorch writes it,
            else the one in the name of its folder.

    Raises:
        TraceFormatError: Neither tells it.
    """
    rank = to_number(value.get("rank"), bits=32)
    if rank < 0:
        rank = next(_in_name(file), -1)
    if not 0 <= rank < MAX_RANKS:
        raise TraceFormatError(
            message("refused.no_rank_of_dump"),
            where=file.label,
            remedy=message("advice.name_as_pytorch"),
        )
    return rank


def _in_name(file: InputFile) -> Iterator[int]:
    for pattern in (_NAMED, _AT_END):
        if match := pattern.search(file.name):
            yield to_number(int(match[1][:10]), bits=32)
    in_folder = rank_in_name(file.label)
    if in_folder is not None:
        yield in_folder
