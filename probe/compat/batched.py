"""Tensors of ``torch.func``, which wrap others."""

from __future__ import annotations

import sys
from typing import Any


def is_batched_inside(tensor: Any) -> bool:
    """Tell whether a tensor is one of many that ``torch.func.vmap`` computes at once: its shape hides how many."""
    functorch = getattr(sys.modules["torch"]._C, "_functorch", None)
    test = getattr(functorch, "is_batchedtensor", None)
    inside = getattr(functorch, "get_unwrapped", None)
    wrapped = getattr(functorch, "is_functorch_wrapped_tensor", None)
    if test is None or inside is None or wrapped is None:
        return False
    while wrapped(tensor):
        if test(tensor):
            return True
        tensor = inside(tensor)
    return False
