"""Reads pickles that hold nothing but numbers, texts, lists, tuples and dicts.

A pickle is a program for an unpickler: it may name any function and have it called.
So a program goes to one only if it was read to its end before (``is_plain``) and
has nothing but operations that make plain values. The others are carried out here, one
by one; what makes no plain value is refused when it comes. No operation here can look up
a name or call anything.

That is found without doing any: one regular expression walks over the operations with their arguments, a hundred times as
fast as Python could. It knows fewer than there are: a program it cannot walk to the end is
not thereby bad, only not known to be good.

What each operation is, is known from ``pickletools``.
"""

from __future__ import annotations

import gc
import io
import pickle
import pickletools
import re
from functools import cached_property
from typing import Any, cast

import numpy as np

from meshscope.probe.schema.errors import TraceFormatError

from ..wording.message import message

_AT_ONCE = 1_000_000
"""Operations in one match: so many more are counted."""


def is_plain(content: bytes, most_operations: int) -> bool:
    """Return whether a pickle surely makes plain values, and in bounded time and memory.

    Args:
        content: The pickle.
        most_operations: A program that may be longer is not.
    """
    if not content.startswith(b"\x80"):
        return False
    position = 2
    while most_operations > 0:
        run = _RUN_OF_OPERATIONS.match(content, position)
        if run is not None:
            most_operations -= min(_AT_ONCE, run.end() - position)
            position = run.end()
        elif content.startswith(b"X", position):
            most_operations -= 1
            position += 5 + int.from_bytes(content[position + 1 : position + 5], "little")
        else:
            return content.startswith(b".", position)
    return False


def _sized(code: bytes, sizes: range) -> bytes:
    """Return the pattern of an operation whose argument begins with its size, one byte."""
    # Sixteen at a time, so that the right size is found after few tries.
    blocks = [sizes[first : first + 16] for first in range(0, len(sizes), 16)]
    return re.escape(code) + _either(*(_either(*map(_of_size, block)) for block in blocks))


def _of_size(size: int) -> bytes:
    return re.escape(bytes([size])) + b".{%d}" % size


def _either(*patterns: bytes) -> bytes:
    return b"(?:" + b"|".join(patterns) + b")"


_NUMBER = _either(rb"K.", rb"M..", rb"J.{4}", rb"G.{8}")
_OPERATION = _either(
    rb"[\x94(}\]eusa\x88\x89N)]",
    rb"h.",
    rb"j.{4}",
    # A tuple has numbers only: as keys, tuples of tuples have a hash that takes forever.
    _NUMBER + _either(rb"\x85", _NUMBER + rb"\x86") + rb"?+",
    _sized(b"\x8a", range(10)),
    rb"q.",
    # The table of values to use again gets as long as the highest place.
    rb"r.{2}[\x00-\x0f]\x00",
    rb"\x95.{8}",
    _sized(b"\x8c", range(256)),
)
_RUN_OF_OPERATIONS = re.compile(_OPERATION + b"{1,%d}+" % _AT_ONCE, re.DOTALL)


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
_SCALARS = frozenset([str, int, float, bool])
_PUTS = frozenset(["PUT", "BINPUT", "LONG_BINPUT"])
_GETS = frozenset(["GET", "BINGET", "LONG_BINGET"])
_BUILDS = frozenset(["APPENDS", "SETITEMS", "APPEND", "SETITEM", "TUPLE", "LIST", "DICT"])
_BINGET, _LONG_BINGET, _MEMOIZE, _LONG1 = ord("h"), ord("j"), 0x94, 0x8A
_APPENDS, _SETITEMS = ord("e"), ord("u")
_MARK, _SHORT_TEXT, _EMPTY_DICT, _EMPTY_LIST, _STOP = ord("("), 0x8C, ord("}"), ord("]"), ord(".")
_GETS_IN_A_ROW = re.compile(rb"(?:j.{4})+", re.DOTALL)
_GET = np.dtype([("code", "u1"), ("place", "<u4")])
_OPERATIONS = {operation.code: operation for operation in pickletools.opcodes}
_SIGNED = ord("J")
_UNSIGNED = {ord("K"): 1, ord("M"): 2}
_TUPLES = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_BROKEN = (
    *(ValueError, IndexError, KeyError, TypeError, OverflowError, AttributeError, EOFError),
    *(pickle.UnpicklingError, MemoryError),
)
"""What programs run into that are cut short or make no sense."""


class _ForeignOperationError(Exception):
    """The program has an operation that makes no plain value."""


def load_plain(content: bytes, where: str, *, most_operations: int = MAX_OPERATIONS) -> Any:
    """Return the value of a pickle of plain values.

    Raises:
        TraceFormatError: It does anything else, is too long, or is damaged.
    """
    # Millions of new containers, none of them garbage: looking for any would double the time.
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        if is_plain(content, most_operations):
            return _Unpickler(io.BytesIO(content)).load()
        return _Machine(content, most_operations).run()
    except _ForeignOperationError as error:
        raise TraceFormatError(
            message("refused.pickle_calls", operation=str(error)),
            where=where,
            remedy=message("advice.foreign_pickle"),
        ) from error
    except _BROKEN as error:
        raise _damaged(str(error), where) from error
    finally:
        if was_enabled:
            gc.enable()


class _Unpickler(pickle.Unpickler):
    """Python's own; it looks up nothing even if asked to, as no program here should."""

    def find_class(self, module: str, name: str) -> Any:
        """Refuse a name."""
        raise _ForeignOperationError(f"{module}.{name}")

    def persistent_load(self, pid: Any) -> Any:
        """Refuse an object from outside."""
        raise _ForeignOperationError("PERSID")


class _Machine:
    """A stack of values, marks in it, and a table of values to use again."""

    def __init__(self, content: bytes, most_operations: int) -> None:
        self._content = content
        self._most = most_operations
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._kept: dict[int, Any] = {}

    def run(self) -> Any:  # noqa: C901 - one branch for each operation, in the order of their frequency
        """Carry out the program, the most frequent operations first; return what is left."""
        content, stack, kept, marks = self._content, self._stack, self._kept, self._marks
        position = 0
        push, take = stack.append, int.from_bytes
        for _ in range(self._most):
            code = content[position]
            position += 1
            if code == _BINGET:
                push(kept[content[position]])
                position += 1
            elif code == _LONG_BINGET and content[position + 4] == _LONG_BINGET:
                places = _run_of_gets(content, position - 1)
                stack.extend(map(kept.__getitem__, places))
                position += 5 * len(places) - 1
            elif code == _LONG_BINGET:
                push(kept[take(content[position : position + 4], "little")])
                position += 4
            elif code == _MEMOIZE:
                kept[len(kept)] = stack[-1]
            elif code in _UNSIGNED:
                size = _UNSIGNED[code]
                push(take(_part(content, position, size), "little"))
                position += size
            elif code == _LONG1:
                size = content[position] + 1
                push(take(_part(content, position + 1, size - 1), "little", signed=True))
                position += size
            elif code == _MARK:
                marks.append(len(stack))
            elif code == _SHORT_TEXT:
                size = content[position] + 1
                push(str(_part(content, position + 1, size - 1), "utf-8", "surrogatepass"))
                position += size
            elif code == _APPENDS:
                first = marks.pop()
                items = stack[first:]
                del stack[first:]
                _expect(stack[-1], list).extend(items)
            elif code == _SETITEMS:
                first = marks.pop()
                items = stack[first:]
                del stack[first:]
                _expect(stack[-1], dict).update(_pairs(items))
            elif code == _SIGNED:
                push(take(_part(content, position, 4), "little", signed=True))
                position += 4
            elif code == _EMPTY_DICT:
                push({})
            elif code == _EMPTY_LIST:
                push([])
            elif code == _STOP:
                return self._result()
            else:
                position = self._rare(code, position)
        raise _ForeignOperationError("it is longer than any dump")

    def _rare(self, code: int, position: int) -> int:
        """Carry out any other operation; return where the next one is."""
        operation = _OPERATIONS.get(chr(code))
        if operation is None:
            raise ValueError(f"at position {position - 1}, opcode {code:#x} unknown")
        if operation.name in _BUILDS or operation.arg is None:
            self._carry_out(operation.name, None)
            return position
        stream = self._stream
        stream.seek(position)
        self._carry_out(operation.name, operation.arg.reader(stream))
        return stream.tell()

    @cached_property
    def _stream(self) -> io.BytesIO:
        return io.BytesIO(self._content)

    def _result(self) -> Any:
        (value,) = self._stack
        return value

    def _carry_out(self, name: str, argument: Any) -> None:
        """Carry out one operation with its argument."""
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
        elif name == "APPEND":
            items = self._pop(1)
            _expect(stack[-1], list).extend(items)
        elif name == "SETITEM":
            items = self._pop(2)
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


def _run_of_gets(content: bytes, position: int) -> list[int]:
    """Return the arguments of all operations from here on that take a value to use again."""
    run = _GETS_IN_A_ROW.match(content, position)
    if run is None:
        raise IndexError("it has no end")
    return cast(list[int], np.frombuffer(run[0], dtype=_GET)["place"].tolist())


def _part(content: bytes, position: int, size: int) -> bytes:
    part = content[position : position + size]
    if len(part) < size:
        raise IndexError("it has no end")
    return part


def _pairs(items: list[Any]) -> dict[Any, Any]:
    """Return keys and values in turn as a dict.

    Keys are scalars: the hash of a tuple of tuples of tuples has no bound.
    """
    if len(items) % 2 or not _SCALARS.issuperset(map(type, items[::2])):
        raise ValueError("a dict with odd keys")
    return dict(zip(items[::2], items[1::2], strict=False))


def _expect(value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"a {kind.__name__} is missing")
    return value


def _damaged(what: str, where: str) -> TraceFormatError:
    return TraceFormatError(
        message("refused.pickle", error=what), where=where, remedy=message("advice.copy_again")
    )
