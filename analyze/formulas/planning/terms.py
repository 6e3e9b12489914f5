"""One term of a plan: its size, its formula and where the formula comes from."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Category(StrEnum):
    """What a term counts as."""

    PARAMETERS = "parameters"
    GRADIENTS = "gradients"
    OPTIMIZER = "optimizer"
    ACTIVATIONS = "activations"
    LOGITS = "logits"
    BUFFERS = "buffers"


class Term(msgspec.Struct, frozen=True, kw_only=True):
    """One part of what a rank holds when it holds most."""

    category: Category
    name: str
    size_bytes: float
    formula: str
    source: str
