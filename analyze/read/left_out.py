"""Files of an input that cannot be used, as limits."""

from __future__ import annotations

from collections.abc import Iterable

from meshscope.probe.schema.errors import TraceFormatError

from ..wording.limits import Limit
from ..wording.message import message


def left_out_files(errors: Iterable[TraceFormatError]) -> list[Limit]:
    """Return one limit for each file that an error kept out."""
    return [message("missing.file_left_out", error=str(error)) for error in errors]
