"""Layers of stages as a user writes them: ``4,4,4,2``."""

from __future__ import annotations

import re

from meshscope.probe.schema.errors import ConfigError

_COUNTS = re.compile(r"\s*\d{1,6}\s*(,\s*\d{1,6}\s*)*")


def parse_counts(text: str, where: str) -> tuple[int, ...]:
    """Return whole numbers with commas between.

    Raises:
        ConfigError: The text is something else.
    """
    if not _COUNTS.fullmatch(text):
        remedy = "Write counts with commas between, such as 4,4,4,2"
        raise ConfigError(f"{text!r:.60} is no list of layers", where=where, remedy=remedy)
    return tuple(int(part) for part in text.split(","))
