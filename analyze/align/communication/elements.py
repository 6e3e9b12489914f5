"""Bytes of an element, by the names that torch and NCCL have for its type."""

from __future__ import annotations

FLOAT_BYTES = {
    **dict.fromkeys(("float64", "double"), 8),
    **dict.fromkeys(("float32", "float"), 4),
    **dict.fromkeys(("bfloat16", "float16", "half"), 2),
    **dict.fromkeys(("float8_e4m3fn", "float8_e5m2"), 1),
}
"""Types that another floating type, or scaled integers, can stand for on the wire."""
ELEMENT_BYTES = {
    **FLOAT_BYTES,
    **dict.fromkeys(("int64", "long"), 8),
    **dict.fromkeys(("int32", "int"), 4),
    "int16": 2,
    **dict.fromkeys(("int8", "uint8", "byte", "char"), 1),
}


def plain_name(dtype: object) -> str:
    """Return the name of a type as the tables here have it.

    >>> plain_name("torch.bfloat16"), plain_name("c10::BFloat16")
    ('bfloat16', 'bfloat16')
    """
    return str(dtype).lower().removeprefix("torch.").removeprefix("c10::")
