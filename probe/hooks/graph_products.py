"""Matrix products that a backward pass meets and no module call made.

A loss may multiply outside of modules, and a gradient that has a gradient of its own (a gradient penalty)
multiplies where no function is called. Both leave nodes in the graph of the backward pass. Their
numbers tell which of them were made in an outermost module call: those are seen there.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator
from math import prod
from typing import Any, NamedTuple

from ..compat.autograd_graph import (
    is_foreign,
    nodes_of,
    sequence_number,
    shape_of_input,
    shape_of_result,
)

_MULTIPLIES = re.compile(r"mm(?:Mm)?Backward|MmBackward|Convolution|Attention|Rnn|Lstm|Trilinear")
"""Names of nodes whose functions multiply matrices."""
_DERIVED = "BackwardBackward"
"""In names of nodes of gradients that have a gradient of their own."""
_SECOND_DIM = -2
_LAST = 1 << 64
_MOST_CALLS = 1024
_TOLERANCE = 0.01
"""By so much the graph may hold more than what was noted: sums of outer products."""
_GRADIENTS = 2 / 3
"""Of the three parts of training."""


class NodeProduct(NamedTuple):
    """A product that a node of the graph stands for.

    Attributes:
        macs: Multiply-adds of the function; 0 where the node does not tell.
        gradients: Operands that have one.
        is_inside: It was made in a module call.
        is_plain: Of two matrices, or of batches of them.
        out_width: The last size of the result.
        is_foreign: It is of a function that another library differentiates, which may multiply.
        is_derived: It is no product, but shows that gradients have gradients.
    """

    macs: int
    gradients: int
    is_inside: bool
    is_plain: bool
    out_width: int = 0
    is_foreign: bool = False
    is_derived: bool = False


class GraphWork:
    """What the backward passes of a step met.

    Args:
        before: That of the step before, if it was observed too.

    Attributes:
        outside: Products outside of module calls, in multiply-adds times the parts of training they have.
        seen: The multiply-adds of their forward passes.
        widths: The last sizes of their results.
    """

    def __init__(self, before: GraphWork | None = None) -> None:
        self.outside = self.seen = 0.0
        self.widths: set[int] = set()
        self._calls: list[tuple[int, int]] = []
        """Numbers of the nodes that each outermost call made: the first, and that after the last."""
        if before is not None:
            # One of two optimizers may end a step whose calls the next backward pass meets.
            self._calls += before._calls[-_MOST_CALLS:]
        self._met: set[int] = set()
        self._numbers: set[int] = set()
        """Those of all nodes that were met."""
        self._works: list[tuple[int, int, float]] = []
        """The numbers of each call of this step, and what it multiplied with its gradients."""
        self._before = None if before is None else (before._works, before._numbers)
        self._inside = 0.0
        self._is_met = self._has_foreign = self._is_untold = self._is_derived = False
        self._is_plain = True

    @property
    def is_all(self) -> bool:
        """Tell whether nothing can have multiplied unseen."""
        return self._is_met and not self._has_foreign

    def numbered(
        self, call: Callable[..., Any], noted: Callable[[], float], *args: Any, **kwargs: Any
    ) -> Any:
        """Return the result of an outermost call, and keep which nodes it made.

        Args:
            call: Makes it.
            noted: Returns what was noted to be multiplied so far.
            args: Its arguments.
            kwargs: Its arguments by name.
        """
        first, before = sequence_number(), noted()
        try:
            return call(*args, **kwargs)
        finally:
            if (after := sequence_number()) > first:
                self._calls.append((first, after))
                self._works.append((first, after, noted() - before))

    def meet(self, results: Any) -> None:
        """Add up what a backward pass from some results meets."""
        self._is_met = True
        for product in products_of_graph(results, self._calls, self._met, self._numbers):
            work = float(product.macs) * (1 + product.gradients)
            self._has_foreign |= product.is_foreign
            self._is_derived |= product.is_derived
            if product.is_inside:
                self._is_plain &= product.is_plain or product.is_foreign
                self._inside += work
            elif not product.is_foreign:
                self.outside += work
                self.seen += product.macs
                self.widths.add(product.out_width)
                self._is_untold |= not product.macs

    def is_uncounted(self, noted: float) -> bool:
        """Tell whether more was multiplied than is counted, where this much was noted in module calls."""
        is_more = self._inside > (1 + _TOLERANCE) * noted
        return self._is_untold or is_more or (self._is_derived and not self._is_plain)

    def unmet_before(self) -> float:
        """Return what calls of the step before multiplied, with gradients, that no backward pass of both steps met.

        An optimizer may end a step between a call and the backward pass that meets it.
        """
        if self._before is None or not self._is_met:
            return 0.0
        works, numbers = self._before
        met = sorted(numbers | self._numbers)
        return sum(
            work
            for first, after, work in works
            if bisect_right(met, after - 1) == bisect_right(met, first - 1)
        )

    def never_met(self, noted: float) -> float:
        """Return the gradients among what was noted of calls that no backward pass met.

        Where gradients have gradients of their own, the first ones may pass calls that the last do not: those
        stand in the graph as products of their own.
        """
        missing = max(noted - self._inside, 0.0) if self._is_derived else 0.0
        return missing * _GRADIENTS


def products_of_graph(
    results: Any, calls: list[tuple[int, int]], met: set[int], numbers: set[int]
) -> Iterator[NodeProduct]:
    """Return the products of the graph of a backward pass.

    Args:
        results: What it begins at.
        calls: First number of a node of each outermost module call, and that after its last, in their order.
        met: Numbers of products that were met before, to which these are added.
        numbers: Those of all nodes, likewise.
    """
    began = calls[0][0] if calls else _LAST
    for number, name, node in nodes_of(results, _is_wanted, numbers):
        if number < began:
            continue  # Made before anything was observed.
        if _DERIVED in name:
            yield NodeProduct(0, 0, is_inside=True, is_plain=True, is_derived=True)
        multiplies = _MULTIPLIES.search(name) is not None
        if number in met or not (multiplies or is_foreign(name, node)):
            continue
        met.add(number)
        place = bisect_right(calls, (number, _LAST)) - 1
        is_inside = place >= 0 and number < calls[place][1]
        if multiplies:
            yield _product(name, node, is_inside=is_inside)
        else:
            yield NodeProduct(0, 0, is_inside, is_plain=False, is_foreign=True)


def _is_wanted(name: str) -> bool:
    return _DERIVED in name or _MULTIPLIES.search(name) is not None


def _product(name: str, node: Any, *, is_inside: bool) -> NodeProduct:
    kind = name.removesuffix("0").removesuffix("Backward")
    gradients = [own is not None for own, _ in node.next_functions]
    if kind in ("Addmm", "Baddbmm"):
        gradients = gradients[1:]
    if kind in ("Mm", "Addmm", "Bmm", "Baddbmm"):
        shape = shape_of_result(node)
        macs = prod(shape) * _inner(kind, node)
        return NodeProduct(macs, sum(gradients), is_inside, is_plain=True, out_width=shape[-1])
    return NodeProduct(0, 0, is_inside, is_plain=False)


def _inner(kind: str, node: Any) -> int:
    """Return how many multiply-adds each element of a result takes; 0 where no operand with a gradient tells."""
    if kind in ("Mm", "Addmm"):
        sizes = node._saved_self_sym_sizes if kind == "Mm" else node._saved_mat1_sym_sizes
        return int(sizes[-1])
    first = 1 if kind == "Baddbmm" else 0
    if (shape := shape_of_input(node, first)) is not None:
        return shape[-1]
    shape = shape_of_input(node, first + 1)
    return 0 if shape is None else shape[_SECOND_DIM]
