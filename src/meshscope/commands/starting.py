"""A command reads soon after it is called: it makes ready only what it was asked for.

Next to nothing to read is the common case of a first try, of a gate and of a script that calls a
verb for each run. What is left out here took a third of such a call.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from contextlib import suppress
from copy import copy
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

_BLAS_THREADS = "OPENBLAS_NUM_THREADS"
_UNKNOWN = object()
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX, _ARENA_MAX = -1, -2, -4, -8
"""Parameters of ``mallopt`` in glibc."""


def load_numpy_with_one_thread() -> None:
    """Load numpy without the threads of its linear algebra: ours is of a few rows.

    They are started with it, one for each core, and half of the time that numpy takes to load is
    theirs. Programs that the command starts find their environment as it was.
    """
    if _BLAS_THREADS in os.environ:
        return
    os.environ[_BLAS_THREADS] = "1"
    try:
        import numpy as np  # noqa: F401
    finally:
        del os.environ[_BLAS_THREADS]


def keep_freed_memory() -> None:
    """Have the C library of this process keep the memory of large arrays that are gone for the next ones.

    It would give each back to the system and ask for it anew, zeroed: with thousands of ranks that took as long
    as the arithmetic. What one thread has freed serves all others, too. Elsewhere than on Linux nothing happens.
    """
    with suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        library.mallopt(_ARENA_MAX, 1)
        library.mallopt(_MMAP_MAX, 0)
        library.mallopt(_TRIM_THRESHOLD, -1)
        library.mallopt(_TOP_PAD, 64 << 20)


def take_tables_from_the_c_library() -> None:
    """Have tables lie in the memory of the C library of this process.

    The pool that Arrow has by default gives memory back while a run is read, and asks for it anew, zeroed: with
    thousands of ranks that took a fifth of a diagnosis.
    """
    import pyarrow as pa

    pa.set_memory_pool(pa.system_memory_pool())


def only_the_verb(app: typer.Typer, words: list[str]) -> typer.Typer:
    """Return the command line with nothing but the verb that the first word names.

    Where it names none, such as before a help or a slip, all verbs are wanted.
    """
    verb = words[0] if words else ""
    commands = [one for one in app.registered_commands if _name_of(one) == verb]
    groups = [one for one in app.registered_groups if one.name == verb]
    if not commands and not groups:
        return app
    narrowed = copy(app)
    narrowed.registered_commands, narrowed.registered_groups = commands, groups
    return narrowed


def _name_of(command: Any) -> str:
    return str(command.name or command.callback.__name__.lower().replace("_", "-"))


class _Plain:
    """Takes texts, paths and what is not given as they are.

    typer has each value of each option checked by pydantic, which takes as long to load as all of
    typer. Numbers, choices and whatever is refused still go that way.
    """

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters, that of the help among them."""
        parameters: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for parameter in parameters:
            # Versions of typer that have no descriptor do not use pydantic.
            known = getattr(parameter.process_value, "func", None) is _processed
            if not known and hasattr(parameter, "type_descriptor"):
                parameter.process_value = partial(_processed, parameter, parameter.process_value)
        return parameters


class PlainCommand(_Plain, TyperCommand):
    """A verb that loads nothing for plain parameters."""


class PlainGroup(_Plain, TyperGroup):
    """A group of verbs that loads nothing for plain parameters."""


def _processed(parameter: Any, process: Callable[..., Any], context: Any, value: Any) -> Any:
    """Return what a parameter gives for a value from the command line, or for its default."""
    try:
        plain = _plain(parameter, value)
    except ValueError:
        plain = _UNKNOWN
    if plain is _UNKNOWN:
        return process(context, value)
    return plain if parameter.callback is None else parameter.callback(context, parameter, plain)


def _plain(parameter: Any, value: Any) -> Any:
    several = parameter.nargs != 1 or parameter.multiple
    if value is None:
        return _UNKNOWN if parameter.required or several else None
    if isinstance(value, Path | Enum | int | float):
        return value  # A default: the command line gives texts.
    if not several:
        return _of_text(parameter, value)
    if not value or not isinstance(value, tuple | list):
        return _UNKNOWN
    each = [_of_text(parameter, one) for one in value]
    return _UNKNOWN if _UNKNOWN in each else each


def _of_text(parameter: Any, text: Any) -> Any:
    stated, kind = parameter.type_descriptor.parameter_info, parameter.type_descriptor.annotation
    if not isinstance(text, str):
        return _UNKNOWN
    if stated.parser is not None:
        return stated.parser(text)
    if kind is str:
        return text
    if kind is Path and not _is_checked(stated) and _is_readable(text):
        return Path(text)
    return _UNKNOWN


def _is_checked(stated: Any) -> bool:
    """Tell if a path must be more than readable."""
    wanted = stated.exists or stated.writable or stated.resolve_path or stated.path_type
    return bool(wanted or not stated.file_okay or not stated.dir_okay)


def _is_readable(text: str) -> bool:
    return os.access(text, os.R_OK) or not os.path.exists(text)
