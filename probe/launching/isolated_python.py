"""Tells of a command whose Python will not see what ``meshscope run`` tells it.

The ranks are reached by ``PYTHONPATH`` and a ``sitecustomize``: an interpreter that is told to
ignore the variables, or not to import ``site``, passes both by.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from pathlib import Path

_PYTHON = re.compile(r"python\d*(\.\d+)?t?")
_DEAF = frozenset("IES")
_WITH_VALUE = frozenset("WX")
_ENDS = frozenset("cm")
_LONGEST_FIRST_LINE = 256
"""What the kernel reads of it."""


def deaf_option(command: Sequence[str], path: str | None = None) -> str:
    """Return the option by which the Python of a command does not hear us; empty if there is none.

    Args:
        command: Program and arguments; of a script its first line counts.
        path: Where programs are looked for, as in ``PATH``.
    """
    if not _is_python(command[0]):
        command = _first_line(command[0], path)
    if not command or not _is_python(command[0]):
        return ""
    words = iter(command[1:])
    for word in words:
        if not word.startswith("-") or word.startswith("--") or word == "-":
            return ""
        for place, letter in enumerate(word[1:], 1):
            if letter in _DEAF:
                return f"-{letter}"
            if letter in _ENDS:
                return ""
            if letter in _WITH_VALUE:
                if place == len(word) - 1:
                    next(words, None)
                break
    return ""


def _is_python(program: str) -> bool:
    return _PYTHON.fullmatch(Path(program).name) is not None


def _first_line(program: str, path: str | None) -> list[str]:
    """Return the command in the first line of a script; empty where it is none."""
    found = shutil.which(program, path=path)
    if found is None:
        return []
    try:
        with open(found, "rb") as file:
            line = file.read(_LONGEST_FIRST_LINE).partition(b"\n")[0]
    except OSError:
        return []
    if not line.startswith(b"#!"):
        return []
    words = line[2:].decode(errors="replace").split()
    is_env = bool(words) and Path(words[0]).name == "env"
    return [word for word in words[1:] if word != "-S"] if is_env else words
