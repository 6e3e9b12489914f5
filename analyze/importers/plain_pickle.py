"""Reads pickles that hold nothing but numbers, texts, lists, tuples and dicts.

A pickle is a program for an unpickler: it may name any function and have it called.
So none is used. The few operations that make plain values are carried out here,
and a program with any other operation is refused when it comes to it; no
operation here can look up a name or call anything.
"""

from __future__ import annotations

import pickletools
from typing import Any

from meshscope.probe.schema.errors import TraceFormatError

MAX_OPERATIONS = 20_000_000
"""Longer programs are refused unless told otherwise."""

_NOTHING = frozenset(["PROTO", "FRAME"])
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_NUMBERS = frozenset(
    ["INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"]
)
_TEXTS = frozenset(
    [
        *("STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE"),
        *("BINUNICODE8", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8"),
    ]
)
_VALUES = _NUMBERS | _TEXTS
"""Operations that push their argument."""
_PUTS = frozenset(["PUT", "BINPUT", "LONG_BINPUT"])
_GETS = frozenset(["GET", "BINGET", "LONG_BINGET"])
_TUPLES = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_BROKEN = (ValueError, IndexError, KeyError, TypeError, OverflowError)
"""What programs run into that are cut short or make no sense."""


class _ForeignOperationError(Exception):
    """The program has an operation that makes no plain value."""


def load_plain(content: bytes, where: str, *, most_operations: int = MAX_OPERATIONS) -> Any:
    """Return the value of a pickle of plain values.

    Raises:
        TraceFormatError: It does anything else, is too long, or is damaged.
    """
    machine = _Machine()
    try:
        for count, (operation, argument, _) in enumerate(pickletools.genops(content)):
            if operation.name == "STOP":
                return machine.result()
            if count >= most_operations:
                raise _ForeignOperationError("it is longer than any dump")
            machine.carry_out(operation.name, argument)
    except _ForeignOperationError as error:
        raise TraceFormatError(
            f"the pickle does more than hold plain values ({error})",
            where=where,
            remedy="Nothing was called; ask where the file comes from",
        ) from error
    except _BROKEN as error:
        raise _damaged(str(error), where) from error
    raise _damaged("it has no end", where)


class _Machine:
    """A stack of values, marks in it, and a table of values to use again."""

    def __init__(self) -> None:
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._kept: dict[int, Any] = {}

    def result(self) -> Any:
        """Return the only value that is left."""
        (value,) = self._stack
        return value

    def carry_out(self, name: str, argument: Any) -> None:
        """Carry out one operation.

        Raises:
            _ForeignOperationError: It is none that makes plain values.
        """
        stack = self._stack
        if name in _VALUES:
            stack.append(argument)
        elif name in _GETS:
            stack.append(self._kept[argument])
        elif name in _PUTS:
            self._kept[argument] = stack[-1]
        elif name == "MARK":
            self._marks.append(len(stack))
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name == "MEMOIZE":
            self._kept[len(self._kept)] = stack[-1]
        elif name not in _NOTHING:
            self._build(name)

    def _build(self, name: str) -> None:
        """Carry out an operation on containers."""
        stack = self._stack
        if name == "EMPTY_DICT":
            stack.append({})
        elif name == "EMPTY_LIST":
            stack.append([])
        elif name in _TUPLES:
            stack.append(tuple(self._pop(_TUPLES[name])))
        elif name == "TUPLE":
            stack.append(tuple(self._above_mark()))
        elif name == "LIST":
            stack.append(self._above_mark())
        elif name == "DICT":
            stack.append(_pairs(self._above_mark()))
        elif name in ("APPEND", "APPENDS"):
            items = self._pop(1) if name == "APPEND" else self._above_mark()
            _expect(stack[-1], list).extend(items)
        elif name in ("SETITEM", "SETITEMS"):
            items = self._pop(2) if name == "SETITEM" else self._above_mark()
            _expect(stack[-1], dict).update(_pairs(items))
        else:
            raise _ForeignOperationError(name)

    def _pop(self, count: int) -> list[Any]:
        if count > len(self._stack):
            raise IndexError("a value is missing")
        first = len(self._stack) - count
        items = self._stack[first:]
        del self._stack[first:]
        return items

    def _above_mark(self) -> list[Any]:
        return self._pop(len(self._stack) - self._marks.pop())


def _pairs(items: list[Any]) -> dict[Any, Any]:
    """Return keys and values in turn as a dict.

    Keys are scalars: the hash of a tuple of tuples of tuples has no bound.
    """
    if len(items) % 2 or not all(isinstance(k, str | int | float) for k in items[::2]):
        raise ValueError("a dict with odd keys")
    return dict(zip(items[::2], items[1::2], strict=True))


def _expect(value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"a {kind.__name__} is missing")
    return value


def _damaged(what: str, where: str) -> TraceFormatError:
    return TraceFormatError(f"the pickle is damaged ({what})", where=where, remedy="Copy it again")
