"""What observed steps multiplied, and what they show of a run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from .pass_work import PassKind, PassWork, RunRows

_SAME = 0.01
"""Steps whose work of a row differs by more are unlike."""
_PER_TRAINING = 3
"""Parts of training that a product takes part in: forward, gradient of the input, of the weights."""


class StepWork(NamedTuple):
    """What one step multiplied, in multiply-adds times the parts of training that each took part in.

    Attributes:
        tokens: Those of its forward calls of training; 0: it was given none.
        passes: What its passes multiplied, by kind.
        outside: Products outside of module calls, those of gradients that have gradients.
        is_whole: Nearly all weights were seen to multiply, or to do nothing.
        has_head: A product over the vocabulary was seen, or there is no vocabulary.
        squares: Sum of the squared lengths of the sequences.
        seen: Products with weights of forward passes that train, in multiply-adds, once each.
        unseen: Weights that were not seen to multiply.
        is_mixed: Layers of unlike widths ran.
        is_all: The graph of the backward pass has no function that could multiply unseen.
        is_uncounted: A function multiplied in a way that is not counted.
        unmet_before: What passes of the step before multiplied, with gradients that no backward pass took.
    """

    tokens: int
    passes: Mapping[PassKind, PassWork]
    outside: float
    is_whole: bool
    has_head: bool
    squares: float = 0.0
    seen: float = 0.0
    unseen: float = 0.0
    is_mixed: bool = False
    is_all: bool = False
    is_uncounted: bool = False
    unmet_before: float = 0.0

    @property
    def trained(self) -> list[PassWork]:
        """Return what passes with gradients multiplied."""
        return [own for kind, own in self.passes.items() if kind[1] and own.weights]


def observed_fields(
    steps: list[StepWork], ran: RunRows, late: Sequence[StepWork] = ()
) -> dict[str, Any]:
    """Return what steps show, as fields of a description of the model.

    Args:
        steps: Observed from begin to end.
        ran: The rows of all passes of the run.
        late: Parts of later steps, which had passes of kinds that the first ones have not.
    """
    each, of_tokens = [*steps, *late], all(step.tokens for step in steps)
    if any(step.is_uncounted for step in each):
        return {"uncounted": True}
    if not all(step.is_whole for step in each):
        return _seen_of(steps) if of_tokens and not late else {"partial": True}
    if of_tokens and not all(step.has_head for step in steps):
        return {"headless": True}
    has_attention = all(any(own.attention for own in step.trained) for step in steps)
    if any(step.is_mixed for step in each) and not has_attention and of_tokens:
        return {"mixed": True}
    first, second = steps
    if second.unmet_before > _SAME * sum(own.weights for own in first.trained):
        return {"unmet": True}
    if bool(ran.tokens) != of_tokens or _is_unlike(steps):
        return {"varies": True}
    per_row = _work_of_kinds(each)
    if any(kind[0] and kind not in per_row for kind in ran.rows):
        return {"partial": True}
    return _ran(steps, ran, per_row, has_attention=has_attention)


def _ran(
    steps: list[StepWork],
    ran: RunRows,
    per_row: Mapping[PassKind, PassWork],
    *,
    has_attention: bool,
) -> dict[str, Any]:
    """Return the work of a token, or of a step where there are no tokens, on average over the run."""
    tokens = sum(step.tokens for step in steps)
    whole, without = PassWork(), PassWork()
    for kind, rows in ran.rows.items():
        one = per_row.get(kind)
        if one is None:
            continue  # Modules without weights, which multiply as a rule nothing.
        share = rows / one.rows / (ran.tokens or ran.steps) / _PER_TRAINING
        scaled = PassWork(
            rows, *(share * part for part in (one.weights, one.attention, one.layers))
        )
        whole.add(scaled)
        if not kind[1]:
            without.add(scaled)
    outside = sum(step.outside for step in steps) / (tokens or len(steps)) / _PER_TRAINING
    found: dict[str, Any] = {
        "ran_products": whole.weights + outside,
        "ran_layers": whole.layers - without.layers,
        "ran_keys": sum(step.squares for step in steps) / tokens if tokens else 0.0,
    }
    if not tokens:
        found["per_step"] = True
    if all(step.is_all for step in steps):
        found["complete"] = True
    if has_attention:
        found["ran_attention"] = whole.attention
    if without.weights:
        found["ran_without"] = without.weights + without.attention
    return found


def _seen_of(steps: list[StepWork]) -> dict[str, Any]:
    seen = sum(step.seen for step in steps) / sum(step.tokens for step in steps)
    return {"seen_products": seen, "unseen_weights": max(step.unseen for step in steps)}


def _work_of_kinds(steps: Iterable[StepWork]) -> dict[PassKind, PassWork]:
    """Return what was seen of each kind of pass."""
    found: dict[PassKind, PassWork] = {}
    for step in steps:
        for kind, own in step.passes.items():
            found.setdefault(kind, PassWork()).add(own)
    return found


def _is_unlike(steps: list[StepWork]) -> bool:
    """Tell whether steps multiply unlike amounts in passes of one kind with gradients, for a row.

    Attention counts as in sequences of the usual length. What is outside of passes counts to all of them.
    """
    tokens = sum(step.tokens for step in steps)
    keys = sum(step.squares for step in steps) / tokens if tokens else 0.0
    works: dict[PassKind, list[float]] = {}
    for step in steps:
        longer = keys * step.tokens / step.squares if step.squares else 1.0
        rows = sum(own.rows for own in step.trained)
        for kind, own in step.passes.items():
            if kind[1] and own.weights:
                work = own.weights + own.attention * longer + step.outside * own.rows / rows
                works.setdefault(kind, []).append(work / own.rows)
    return any(max(each) > (1 + _SAME) * min(each) for each in works.values())
