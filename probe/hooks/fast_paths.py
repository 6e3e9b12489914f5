"""Modules of torch that compute in one kernel in evaluation, unless a mode of torch functions is on.

With a mode their results would differ in their last bits. So the mode of an observed step is off while
one of them is called, wherever the program keeps it, and its products are told by its sizes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

from ..compat.function_modes import topmost_function_mode
from .function_products import Product, function_mode, products_of
from .module_products import product_of


class FastProducts(NamedTuple):
    """What a call of such a module multiplied without calling another module.

    Attributes:
        weights: Multiply-adds with weights.
        attention: Products of tokens with tokens.
        parts: The modules whose weights they are.
    """

    weights: int
    attention: list[Product]
    parts: list[Any]


def has_fast_path(module: Any) -> bool:
    """Tell whether a call of a module may take another way where a mode of torch functions is on."""
    return _may_have(module.__class__) and not module.training


@cache
def _may_have(kind: type) -> bool:
    from torch import nn

    return issubclass(
        kind, nn.MultiheadAttention | nn.TransformerEncoderLayer | nn.TransformerEncoder
    )


def without_mode(call: Callable[..., Any]) -> Any:
    """Return the result of a call in which our mode is off.

    Below a mode of the program there is no fast path anyway: then ours stays where it is.
    """
    mode = topmost_function_mode()
    if not isinstance(mode, function_mode()):
        return call()
    mode.__exit__(None, None, None)
    try:
        return call()
    finally:
        mode.__enter__()


def fast_products(module: Any, args: Any, kwargs: Any) -> FastProducts:
    """Return what a call multiplied in which no other module was called.

    Raises:
        Exception: Its input is of a kind without one shape, as nested tensors are.
    """
    from torch import nn

    if isinstance(module, nn.TransformerEncoder):
        return FastProducts(0, [], [])
    if isinstance(module, nn.MultiheadAttention):
        # Its four matrices are noted as it is called.
        return FastProducts(0, _attention(module, *_three(args, kwargs)), [])
    given = args[0] if args else kwargs["src"]
    inside = [own for own in module.modules() if own is not module.self_attn.out_proj]
    weights = sum(product_of(own)[0] for own in inside)
    rows = given.numel() // int(given.shape[-1])
    attention = _attention(module.self_attn, given, given, given)
    return FastProducts(rows * weights, attention, inside)


def _three(args: Any, kwargs: Any) -> list[Any]:
    """Return queries, keys and values, by place or by name."""
    names = ("query", "key", "value")
    return [*args[:3], *(kwargs[name] for name in names[len(args) :])]


def _attention(module: Any, *three: Any) -> list[Product]:
    """Return scores and their use, with the sequences before the batch as the function has them."""
    is_turned = module.batch_first and three[0].dim() > 2
    turned = [own.transpose(0, 1) for own in three] if is_turned else three
    return products_of("multi_head_attention_forward", turned, {}, None)
