"""A decoder's sizes as its live modules show them, where no configuration does.

Only what leaves nothing open is described: one token embedding, an output head of the same
sizes, and layers in one list that hold the same matrices, each used once by every token. Experts,
convolutions, recurrent layers, matrices that are no ``nn.Linear``, shards of a tensor: not described.

The matrices of a layer are counted, not understood. They are described as an attention of four
``h x h`` matrices and a plain MLP of the width that makes the sum right: the products are exact,
and so is attention to keys, as all heads together must be as wide as the model. What is a gated MLP, or
which heads share keys, is not said.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

_HEADS = ("num_heads", "n_heads", "n_head", "num_attention_heads", "nhead", "n_heads_q", "heads")
"""What attentions call the number of their heads."""
_OTHERS_FRAC = 0.01
"""Matrices outside layers and head, such as a small projection, that are left out of the count."""


def fields_of_modules(root: Any, seq_len: int) -> dict[str, Any] | None:
    """Return the fields of a description of a model, None where its modules leave it open.

    Args:
        root: The model, or a wrapper of it.
        seq_len: Tokens of one sequence.
    """
    from torch import nn

    if not isinstance(root, nn.Module):
        return None
    modules = list(root.modules())
    if any(isinstance(own, nn.modules.conv._ConvNd | nn.RNNBase) for own in modules):
        return None
    layers = _layers(modules)
    in_layers = {id(own) for layer in layers for own in layer.modules()}
    around = [own for own in modules if id(own) not in in_layers]
    found = _embedding_and_head(around)
    if found is None or not layers:
        return None
    embedding, head = found
    hidden = int(embedding.embedding_dim)
    products = {_products(layer) for layer in layers}
    (first,) = products if len(products) == 1 else (None,)
    heads = {count for layer in layers for count in _heads_of(layer)}
    if first is None or len(heads) != 1 or hidden % max(heads):
        return None
    if not all(_is_as_wide(layer, hidden) for layer in layers):
        return None
    others = (own for own in around if own is not head)
    outside, counted = _sum_of_linears(others), len(layers) * first + head.weight.numel()
    ffn, rest = divmod(first - 4 * hidden * hidden, 2 * hidden)
    if outside > _OTHERS_FRAC * counted or ffn < 1 or rest:
        return None
    return {
        "num_layers": len(layers),
        "hidden_size": hidden,
        "num_heads": heads.pop(),
        "ffn_size": ffn,
        "vocab_size": int(embedding.num_embeddings),
        "seq_len": seq_len,
        "tied": head.weight is embedding.weight,
        "counted": True,
    }


def _embedding_and_head(modules: list[Any]) -> tuple[Any, Any] | None:
    """Return the token embedding and the output head, which have the same two sizes."""
    from torch import nn

    sizes: dict[tuple[int, ...], Any] = {
        (own.num_embeddings, own.embedding_dim): own
        for own in modules
        if isinstance(own, nn.Embedding)
    }
    heads = [
        own for own in modules if isinstance(own, nn.Linear) and tuple(own.weight.shape) in sizes
    ]
    return (sizes[tuple(heads[0].weight.shape)], heads[0]) if len(heads) == 1 else None


def _layers(modules: list[Any]) -> list[Any]:
    """Return the children of the list of like modules that holds most, none where it has experts in it."""
    found = _longest(modules)
    inside = {id(own) for layer in found for own in layer.modules()}
    many = [own for own in _lists_of_like(modules) if id(own) in inside and len(own) > 1]
    return [] if any(_sum_of_linears(own.modules()) for own in many) else found


def entries_of_longest_list(modules: list[Any]) -> list[Any]:
    """Return the layers among the modules of a model: the entries of the list of like ones that holds most."""
    return _longest(modules)


def _longest(modules: list[Any]) -> list[Any]:
    from torch import nn

    alike = _lists_of_like(modules)
    if not alike:
        return []
    # A layer that stands in the list more than once runs as often, with the same weights.
    most = max(alike, key=_sum_of_parameters)
    entries = most.values() if isinstance(most, nn.ModuleDict) else most
    return [layer for layer in entries if layer is not None]


def _lists_of_like(modules: list[Any]) -> list[Any]:
    from torch import nn

    lists = [
        own for own in modules if isinstance(own, nn.ModuleList | nn.Sequential | nn.ModuleDict)
    ]
    alike = [own for own in lists if len({type(child) for child in own.children()}) == 1]
    # A wrapper may be a list of one model.
    return [own for own in alike if not any(isinstance(m, nn.Embedding) for m in own.modules())]


def _products(layer: Any) -> int | None:
    """Return the elements of the matrices that a token meets in a layer; None if some are of no known kind."""
    from torch import nn

    total = 0
    for own in layer.modules():
        for name, parameter in own.named_parameters(recurse=False):
            holds_matrices = isinstance(own, nn.Linear | nn.MultiheadAttention)
            is_flat = parameter.dim() < 2
            if not is_flat and holds_matrices:
                total += parameter.numel()
            elif not is_flat or not parameter.numel() or (name == "weight" and holds_matrices):
                return None
    return total


def _is_as_wide(layer: Any, hidden: int) -> bool:
    """Return whether attention is as wide as the model: its output matrix is square then."""
    from torch import nn

    return any(
        isinstance(own, nn.MultiheadAttention)
        or (isinstance(own, nn.Linear) and own.in_features == own.out_features == hidden)
        for own in layer.modules()
    )


def _heads_of(layer: Any) -> set[int]:
    found = (getattr(own, name, None) for own in layer.modules() for name in _HEADS)
    return {value for value in found if type(value) is int and value > 0}


def _sum_of_linears(modules: Iterable[Any]) -> int:
    from torch import nn

    return sum(own.weight.numel() for own in modules if isinstance(own, nn.Linear))


def _sum_of_parameters(module: Any) -> int:
    return sum(own.numel() for own in module.parameters())
