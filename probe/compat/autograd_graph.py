"""Every private name of torch around the graph that autograd keeps, which the probe leans on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

_FUNCTIONS = "torch"
"""Where functions with a backward pass of their own are known to multiply nothing: checkpointing, wrappers."""
_OPERATORS = ("GeneratedBackwardFor_", "torch::autograd::CppNode")
"""How nodes begin of operators that other libraries register, and of functions of C++."""


def sequence_number() -> int:
    """Return the number that the next node of this thread gets; -1 where torch does not tell."""
    from torch import autograd

    found = getattr(autograd, "_get_sequence_nr", None)
    return -1 if found is None else int(found())


def nodes_of(
    results: Any, is_wanted: Callable[[str], bool], numbers: set[int]
) -> Iterator[tuple[int, str, Any]]:
    """Return number, name and object of the nodes of some names that a backward pass from results meets.

    No value is read, and nothing that is saved for the backward pass is unpacked. Nodes of operators have
    a class for each name, which is asked once; those of functions of other libraries are always returned.

    Args:
        results: What the pass begins at.
        is_wanted: Tells by a name.
        numbers: Those of all nodes that are met are added to it.
    """
    given = results if isinstance(results, list | tuple) else (results,)
    waiting = [own.grad_fn for own in given if getattr(own, "grad_fn", None) is not None]
    met = set(waiting)
    left_out: set[type] = set()
    while waiting:
        node = waiting.pop()
        numbers.add(node._sequence_nr())
        for onward, _ in node.next_functions:
            if onward is not None and onward not in met:
                met.add(onward)
                waiting.append(onward)
        kind = type(node)
        if kind in left_out:
            continue
        name = node.name()
        if is_wanted(name) or is_foreign(name, node):
            yield node._sequence_nr(), name, node
        elif kind.__name__ == name:
            left_out.add(kind)


def shape_of_input(node: Any, place: int) -> tuple[int, ...] | None:
    """Return the shape of an operand of the function that a node stands for; None where it has no gradient."""
    onward, number = node.next_functions[place]
    return None if onward is None else tuple(map(int, onward._input_metadata[number].shape))


def shape_of_result(node: Any) -> tuple[int, ...]:
    """Return the shape of what the function that a node stands for returned."""
    return tuple(map(int, node._input_metadata[0].shape))


def is_foreign(name: str, node: Any) -> bool:
    """Tell whether a node is of a function with a backward pass of its own, written outside of torch."""
    if name.startswith(_OPERATORS):
        return True
    made_by = getattr(node, "_forward_cls", None)
    return made_by is not None and made_by.__module__.partition(".")[0] != _FUNCTIONS
