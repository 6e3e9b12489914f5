"""What observed steps multiplied, and what they show of a model."""

from __future__ import annotations

from typing import Any, NamedTuple

_SAME = 0.01
"""Steps whose work of a token differs by more are unlike."""


class StepWork(NamedTuple):
    """What one step multiplied, in multiply-adds of a forward pass; a third each for the three parts of training.

    Attributes:
        tokens: Those of its forward calls of training.
        trained: Products with weights in passes that train.
        forward_only: Products with weights in passes without gradients.
        layers: Layers times the tokens that they were given.
        is_whole: Nearly all weights were seen to multiply, or to do nothing.
        has_head: A product over the vocabulary was seen, or there is no vocabulary.
        attention: Products of two operands that both come from tokens, in passes that train.
        attention_only: The same in passes without gradients.
        squares: Sum of the squared lengths of the sequences.
        seen: Products with weights of forward passes that train, once each.
        unseen: Weights that were not seen to multiply.
        is_mixed: Layers of unlike widths ran.
        is_all: The graph of the backward pass has no function that could multiply unseen.
        is_uncounted: A function multiplied in a way that is not counted.
    """

    tokens: int
    trained: float
    forward_only: float
    layers: float
    is_whole: bool
    has_head: bool
    attention: float = 0.0
    attention_only: float = 0.0
    squares: float = 0.0
    seen: float = 0.0
    unseen: float = 0.0
    is_mixed: bool = False
    is_all: bool = False
    is_uncounted: bool = False


def observed_fields(steps: list[StepWork]) -> dict[str, Any]:
    """Return what steps show, as fields of a description of the model.

    A forward pass without gradients counts as often as the step has it that has the least: an
    evaluation now and then is not of the step.
    """
    tokens = sum(step.tokens for step in steps)
    if any(step.is_uncounted for step in steps):
        return {"uncounted": True}
    if not all(step.is_whole for step in steps):
        seen = sum(step.seen for step in steps) / tokens
        return {"seen_products": seen, "unseen_weights": max(step.unseen for step in steps)}
    if not all(step.has_head for step in steps):
        return {"headless": True}
    has_attention = all(step.attention for step in steps)
    if any(step.is_mixed for step in steps) and not has_attention:
        return {"mixed": True}
    keys = sum(step.squares for step in steps) / tokens
    each = [_work_of_a_token(step, keys) for step in steps]
    if max(each) > (1 + _SAME) * min(each):
        return {"varies": True}
    extra = min(step.forward_only / step.tokens for step in steps)
    found: dict[str, Any] = {
        "ran_products": sum(step.trained for step in steps) / tokens + extra,
        "ran_layers": sum(step.layers for step in steps) / tokens,
        "ran_keys": keys,
    }
    if all(step.is_all for step in steps):
        found["complete"] = True
    if has_attention:
        extra = min(step.attention_only / step.tokens for step in steps)
        found["ran_attention"] = sum(step.attention for step in steps) / tokens + extra
    return found


def _work_of_a_token(step: StepWork, keys: float) -> float:
    """Return what a token multiplies if its sequence has the usual length."""
    longer = keys * step.tokens / step.squares if step.squares else 1.0
    return (step.trained + step.attention * longer) / step.tokens
