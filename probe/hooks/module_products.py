"""Which weights the call of a module multiplies, by what the module is."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

OTHERS_FRAC = 0.01
"""Share of the weights whose products may stay unseen: positions, small projections."""
_MOST_PACKED_BYTES = 4
"""Of an element of quantised weights that a buffer holds: packed integers, floats of one byte."""


class ModulePart:
    """One module: what its call multiplies."""

    __slots__ = ("has_run", "is_layer", "module", "pending", "weights", "width")

    def __init__(self, module: Any) -> None:
        self.module = module
        self.weights, self.width = product_of(module)
        self.is_layer = self.has_run = False
        self.pending = 0
        """Calls under reentrant checkpointing: their gradients come with the recomputation."""

    def shapes(self) -> set[Any]:
        """Return the shapes of its parameters."""
        return {own.shape for own in self.module._parameters.values() if own is not None}


def product_of(module: Any) -> tuple[int, int]:
    """Return how many weights a call of a module multiplies, and the width of its input; zeros for none.

    Known are ``nn.Linear`` and what is made like it (two widths and one matrix), the transposed
    one of GPT-2 in transformers, and ``nn.MultiheadAttention`` with inputs of one width.
    """
    from torch import nn

    own = module._parameters
    if isinstance(module, nn.MultiheadAttention):
        inside = own.get("in_proj_weight")
        return (0, 0) if inside is None else (4 * module.embed_dim**2, module.embed_dim)
    weight = own.get("weight", vars(module).get("weight"))
    if weight is None or isinstance(module, nn.Embedding):
        return 0, 0
    out, width = getattr(module, "out_features", None), getattr(module, "in_features", None)
    if type(out) is int and type(width) is int:
        fits = isinstance(module, nn.Linear) or tuple(weight.shape) == (out, width)
        return (out * width, width) if fits else (0, 0)
    is_transposed = type(module).__name__ == "Conv1D" and weight.dim() == 2
    return (weight.numel(), int(weight.shape[0])) if is_transposed else (0, 0)


def doubts_of(root: Any) -> dict[str, bool]:
    """Return what makes the FLOPs of a model other than its sizes say, until its products were observed.

    Frozen weights: how much of a backward pass is left is not known. No module over the
    vocabulary: a model without its output head, or one that multiplies in a way of its own.
    """
    from torch import nn

    modules = list(root.modules()) if isinstance(root, nn.Module) else []
    parts = [ModulePart(own) for own in modules]
    weights = sum(part.weights for part in parts)
    frozen = sum(part.weights for part in parts if not _is_trained(part.module))
    whole = {
        own.num_embeddings
        for own in modules
        if isinstance(own, nn.Embedding) and own.weight.shape[0] == own.num_embeddings
    }
    heads = whole & {getattr(own, "out_features", None) for own in modules}
    doubts = {"frozen": frozen > OTHERS_FRAC * weights, "headless": bool(whole) and not heads}
    return {name: True for name, is_so in doubts.items() if is_so}


def _is_trained(module: Any) -> bool:
    return any(own.requires_grad for own in module._parameters.values() if own is not None)


def is_unused(module: Any) -> bool:
    """Tell whether a module that was not called got no gradient, which its weights could have."""
    own = [parameter for parameter in module._parameters.values() if parameter is not None]
    return _is_trained(module) and all(parameter.grad is None for parameter in own)


def other_matrices(part: ModulePart, used: set[Any], *, has_gradients: bool = False) -> int:
    """Return the elements of matrices of a module whose use is not known: kernels, quantised weights.

    Args:
        part: The module.
        used: Shapes of what functions were given.
        has_gradients: A backward pass was made: a parameter without a gradient did nothing.
    """
    from torch import nn

    if part.weights or isinstance(part.module, nn.Embedding):
        return 0
    own = [
        each
        for each in part.module._parameters.values()
        if each is not None and not (has_gradients and each.requires_grad and each.grad is None)
    ]
    if not part.module._modules:
        own += [
            each for each in part.module._buffers.values() if each is not None and _is_packed(each)
        ]
    return sum(each.numel() for each in own if each.dim() > 1 and each.shape not in used)


def _is_packed(buffer: Any) -> bool:
    """Tell whether a buffer may hold quantised weights; tables of angles and masks are none."""
    size = buffer.element_size()
    if buffer.is_floating_point():
        return bool(size == 1)
    return not str(buffer.dtype).endswith("bool") and bool(size <= _MOST_PACKED_BYTES)


def rows_of(part: ModulePart, given: Any, args: Any) -> float:
    """Return how many rows a call multiplies with the weights of a module, on average over them.

    Two of the four matrices of an attention meet its keys, of which it may have more or fewer than queries.
    """
    rows = given.numel() / given.shape[-1]
    if "in_proj_weight" not in part.module._parameters or len(args) < 2:
        return float(rows)
    return float(rows + args[1].numel() / args[1].shape[-1]) / 2


def gradients_of(part: ModulePart, given: Any) -> int:
    """Return how many of the two gradients a call has: of its input, of its weights."""
    if part.is_layer:
        trained = any(own.requires_grad for own in part.module.parameters())
        return 2 if trained or given.requires_grad else 0
    weight = getattr(part.module, "weight", None)
    if weight is None:
        weight = part.module.in_proj_weight
    return int(given.requires_grad) + int(weight.requires_grad)


def weights_seen(
    parts: Collection[ModulePart], roots: Iterable[Any], used: set[Any]
) -> tuple[int, int]:
    """Return the weights that could multiply, and those that were not seen to, or to do nothing.

    A weight without a gradient, while others have one, was not used at all.

    Args:
        parts: The modules of the outermost calls.
        roots: Those that were called.
        used: Shapes of what functions were given.
    """
    has_gradients = any(own.grad is not None for root in roots for own in root.parameters())
    unseen = sum(
        part.weights
        for part in parts
        if part.weights
        and not part.has_run
        and not (has_gradients and is_unused(part.module))
        and not (part.shapes() & used)
    )
    others = sum(other_matrices(part, set()) for part in parts)
    unseen += sum(other_matrices(part, used, has_gradients=has_gradients) for part in parts)
    return others + sum(part.weights for part in parts), unseen
