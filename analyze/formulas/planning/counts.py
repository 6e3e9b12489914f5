"""Layers of stages as a user writes them: ``4,4,4,2``."""

from __future__ import annotations

import re

from meshscope.probe.schema.errors import ConfigError

from ...wording.message import message

_COUNTS = re.compile(r"\s*\d{1,6}\s*(,\s*\d{1,6}\s*)*")


def parse_counts(text: str, where: str) -> tuple[int, ...]:
    """Return whole numbers with commas between.

    Raises:
        ConfigError: The text is something else.
    """
    if not _COUNTS.fullmatch(text):
        raise ConfigError(
            message("refused.no_list_of_layers", value=text),
            where=where,
            remedy=message("advice.counts"),
        )
    return tuple(int(part) for part in text.split(","))
