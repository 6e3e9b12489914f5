"""What passes multiply for each row they are given, and how many rows the run gave to each kind of pass.

A pass is an outermost call of a module, with gradients or without. Steps may be of several kinds: a policy
generates before every third update, a critic is updated more often than its generator. Two observed steps
do not show them all, so the rows of each kind of pass are added up over the run. What a kind multiplies
for a row is known from the steps that were observed; the first pass of a kind that was not is observed when it comes.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from .values import tensors_of

PassKind = tuple[int, int, bool]
"""The identity of the module; which gradients the pass has: 0 for none, else flags; and whether sequences have one token.

Of a generation each pass but the first has one: its head works on all rows.
"""
_RECORDED, _OF_INPUT, _OF_WEIGHTS = 1, 2, 4
"""Flags: gradients are recorded at all; those of the input; those of the weights, by the first of them."""
_MOST_KINDS = 64
"""Kinds that are told apart: a job has few, unless it makes new modules in each step."""
_MOST_KNOWN = 4096
"""Modules that are remembered."""
_OTHERS: PassKind = (-1, 0, False)
_FEW = 0.01
"""Rows that are less than this share of the tokens change nothing."""
_IDS = ("input_ids", "inputs_embeds", "decoder_input_ids")
"""Of arguments by name, those that a pass has a row for each element or vector of."""
_MATRIX_DIM = 2


class PassWork:
    """What passes of one kind multiplied, in multiply-adds times the parts of training that they took part in.

    Attributes:
        rows: Rows that they were given.
        weights: Products with weights.
        attention: Products of two operands that both come from tokens.
        layers: Layers times the tokens that they were given.
    """

    __slots__ = ("attention", "layers", "rows", "weights")

    def __init__(
        self, rows: float = 0.0, weights: float = 0.0, attention: float = 0.0, layers: float = 0.0
    ) -> None:
        self.rows, self.weights, self.attention, self.layers = rows, weights, attention, layers

    def add(self, other: PassWork) -> None:
        """Add what others multiplied."""
        self.rows += other.rows
        self.weights += other.weights
        self.attention += other.attention
        self.layers += other.layers


class RunRows(NamedTuple):
    """How much of each kind of pass ran.

    Attributes:
        rows: By kind.
        tokens: Those of forward calls of training.
        steps: Steps that ended.
    """

    rows: Mapping[PassKind, float]
    tokens: int
    steps: int


class PassRows:
    """Adds up the rows of passes over the run.

    Attributes:
        tokens: Those of forward calls of training.
        steps: Steps that ended.
    """

    def __init__(self) -> None:
        self._rows: dict[PassKind, float] = {}
        self._known: dict[int, tuple[Callable[[], Any], Callable[[], Any], int]] = {}
        self.tokens = self.steps = 0

    def forget(self) -> None:
        """Begin anew: the first step has what is done once."""
        self._rows.clear()
        self.tokens = self.steps = 0

    def add(self, module: Any, args: Any, kwargs: Any, *, grads: bool) -> tuple[PassKind, float]:
        """Add the rows of a pass; return its kind and its rows.

        Modules without weights are of one kind. Those that are too many to be told apart count as never observed.
        """
        _, first, own = self._of(module)
        given = _given(args, kwargs)
        gradients = 0
        if grads:
            gradients = _RECORDED | _OF_INPUT * bool(getattr(given, "requires_grad", False))
            gradients |= _OF_WEIGHTS * bool(getattr(first(), "requires_grad", False))
        kind = (id(module) if own else 0), gradients, _is_single(given)
        if kind not in self._rows and len(self._rows) >= _MOST_KINDS:
            kind = _OTHERS
        rows = _rows_of(given)
        self._rows[kind] = self._rows.get(kind, 0.0) + rows
        return kind, rows

    def all(self) -> RunRows:
        """Return what ran so far."""
        return RunRows(self._rows, self.tokens, self.steps)

    def forward_rows(self) -> dict[str, Any]:
        """Return the rows of passes without gradients a token of training, as fields; none of few, or without tokens.

        A wrapper and what it wraps begin with the same weights, and are one model. Of others it is said that they ran.
        """
        if not self.tokens:
            return {}
        first = {own: known[2] for own, known in self._known.items()}
        trained = {first.get(own) for own, grads, _ in self._rows if grads and own}
        without = [(k[0], rows) for k, rows in self._rows.items() if not k[1] and k[0]]
        same = sum(rows for own, rows in without if first.get(own) in trained)
        least = _FEW * self.tokens
        found: dict[str, Any] = {"forward_rows": same / self.tokens} if same > least else {}
        if sum(rows for _, rows in without) - same > least:
            found["other_passes"] = True
        return found

    def _of(self, module: Any) -> tuple[Callable[[], Any], Callable[[], Any], int]:
        """Return a module and its first parameter, as far as they live, and the identity of that one, 0 without any."""
        known = self._known.get(id(module))
        if known is not None and known[0]() is module:
            return known
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        parameter = next(iter(module.parameters()), None)
        first = _none if parameter is None else weakref.ref(parameter)
        found = weakref.ref(module), first, 0 if parameter is None else id(parameter)
        self._known[id(module)] = found
        return found


def _none() -> None:
    """Return what a reference to nothing refers to."""


def _given(args: Any, kwargs: Mapping[str, Any]) -> Any:
    """Return the first tensor that a pass is given, by names token ids; None without any."""
    given = args[0] if args else None
    if hasattr(given, "numel"):
        return given
    named = next((kwargs[name] for name in _IDS if kwargs.get(name) is not None), None)
    return named if named is not None else next(tensors_of(given or kwargs), None)


def _is_single(given: Any) -> bool:
    return given is not None and given.dim() == _MATRIX_DIM and given.shape[1] == 1


def _rows_of(given: Any) -> float:
    """Return the rows of a tensor: elements of integers, else vectors along the last dimension; 1 of none."""
    if given is None:
        return 1.0
    elements = float(given.numel())
    if given.dim() > _MATRIX_DIM and given.is_floating_point():
        elements /= max(int(given.shape[-1]), 1)
    return max(elements, 1.0)
