"""Limits and reasons as the sentences that people read."""

from __future__ import annotations

from typing import TypeVar

from meshscope.analyze.wording.message import Text

Limits = TypeVar("Limits", tuple[Text, ...], list[Text])


def texts(limits: Limits) -> Limits:
    """Return the sentences of limits, in their order."""
    return type(limits)(map(str, limits))
