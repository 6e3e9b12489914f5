"""Arithmetic of single operators, from the shapes of their inputs.

A multiply-add is two FLOPs. A product of an m x k and a k x n matrix has ``2 m k n``. Attention
multiplies two such products in the forward pass, ``QK^T`` and its use on ``V``, and five in
the backward pass, because its fused kernels compute the scores again (Dao et al.,
FlashAttention-2, 2023, section 4); with a causal mask half of that.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from math import prod
from typing import NamedTuple

Shape = tuple[int, ...]


class Inputs(NamedTuple):
    """What a formula takes."""

    tensors: list[Shape]
    is_causal: bool


Formula = Callable[[Inputs], float | None]

CAUSAL = "causal"
"""Stands behind the shapes of an attention whose mask is causal."""
_TENSOR = re.compile(r"(\S+)\[([\d,]*)\]")
_FORWARD_PRODUCTS, _BACKWARD_PRODUCTS = 2, 5
_QUERY_KEY_VALUE = 3
_DENSE = 4
"""Dimensions of a query of sequences of one length; packed ones have fewer, and do not say how long each is."""


def operator_flops(name: str, shapes: str) -> float | None:
    """Return the FLOPs of one call, None for an operator that is not known to multiply matrices.

    Args:
        name: As the profiler names it.
        shapes: As in the ``shapes`` column of the table ``op``.

    >>> operator_flops("aten::addmm", "bf16[640] bf16[888,2880] bf16[2880,640]")
    3273523200.0
    """
    formula = _FORMULAS.get(name)
    if formula is None:
        return None
    tensors = [_sizes(text) for _, text in _TENSOR.findall(shapes)]
    return formula(Inputs(tensors, shapes.endswith(f" {CAUSAL}")))


def multiplies(name: str) -> bool:
    """Return whether the arithmetic of an operator is known where its shapes are."""
    return name in _FORMULAS


def element_type(shapes: str) -> str:
    """Return the element type of the last two matrices of a product, or of the query.

    >>> element_type("f32[640] bf16[888,2880] bf16[2880,640]")
    'bf16'
    """
    types = [kind for kind, sizes in _TENSOR.findall(shapes) if "," in sizes]
    return types[0] if types else ""


def _sizes(text: str) -> Shape:
    return tuple(int(size) for size in text.split(",") if size)


def _product(first: int) -> Formula:
    """Return the formula of a product of two matrices, or batches of them, at ``first``."""

    def flops(inputs: Inputs) -> float | None:
        if len(inputs.tensors) < first + 2:
            return None
        left, right = inputs.tensors[first : first + 2]
        fits = len(left) == len(right) >= 2 and left[-1] == right[-2] and left[:-2] == right[:-2]
        return 2.0 * prod(left) * right[-1] if fits else None

    return flops


def _linear(inputs: Inputs) -> float | None:
    rows, weight = (*inputs.tensors, (), ())[:2]
    if not rows or len(weight) != 2:
        return None
    return 2.0 * prod(rows) * weight[0] if rows[-1] == weight[1] else None


def _attention(*, first: int, sequence: int, products: int) -> Formula:
    """Return the formula of an attention.

    Args:
        first: Position of the query, which key and value follow.
        sequence: Dimension of queries and keys that counts them.
        products: Matrix products of a call.
    """

    def flops(inputs: Inputs) -> float | None:
        tensors = inputs.tensors[first : first + _QUERY_KEY_VALUE]
        if [len(shape) for shape in tensors] != [_DENSE] * _QUERY_KEY_VALUE:
            return None
        query, key, value = tensors
        if inputs.is_causal and query[sequence] != key[sequence]:
            # Which of the scores are masked depends on the corner that the mask begins in.
            return None
        scores = prod(query[:-1]) * key[sequence] / (2 if inputs.is_causal else 1)
        # Products along the width of the keys and along that of the values come in turns.
        along_keys = products // 2 + products % 2
        return 2.0 * scores * (along_keys * query[-1] + products // 2 * value[-1])

    return flops


def _attentions() -> dict[str, Formula]:
    """Return the fused attentions of PyTorch, whose backward pass begins with the output's gradient."""
    found = {}
    heads_first = "aten::_scaled_dot_product_{}_attention"
    for name, sequence in (
        *((heads_first.format(kind), 2) for kind in ("flash", "efficient", "cudnn")),
        ("aten::_flash_attention_forward", 1),
        ("aten::_efficient_attention_forward", 1),
        ("aten::_cudnn_attention_forward", 2),
    ):
        backward = f"{name.removesuffix('_forward')}_backward"
        found[name] = _attention(first=0, sequence=sequence, products=_FORWARD_PRODUCTS)
        found[backward] = _attention(first=1, sequence=sequence, products=_BACKWARD_PRODUCTS)
    return found


_FORMULAS: dict[str, Formula] = {
    "aten::mm": _product(0),
    "aten::bmm": _product(0),
    "aten::_scaled_mm": _product(0),
    "aten::addmm": _product(1),
    "aten::baddbmm": _product(1),
    "aten::_addmm_activation": _product(1),
    "aten::linear": _linear,
    **_attentions(),
}
