"""Commands of meshscope, made safe to paste into a shell: paths may hold any character."""

from __future__ import annotations

import os
import shlex
from pathlib import Path


def command_line(*words: object) -> str:
    """Return a command of meshscope as a shell takes it, on one line."""
    return " ".join(["meshscope", *map(_shell_word, words)])


def _shell_word(word: object) -> str:
    r"""Return one word quoted for a shell.

    A path that begins with a dash would be an option. What does not print goes as the bytes that bash,
    zsh and ksh make of it again.

    >>> _shell_word(Path("-run")), _shell_word("a b"), _shell_word("red\x1b[31m")
    ('./-run', "'a b'", "$'red\\x1b[31m'")
    """
    text = str(word)
    if isinstance(word, Path) and text.startswith("-"):
        text = f"./{text}"
    if text.isprintable():
        return shlex.quote(text)
    return "$'" + "".join(map(_escaped, text)) + "'"


def _escaped(char: str) -> str:
    """Return a character as it stands between ``$'`` and ``'``."""
    if char in "\\'":
        return f"\\{char}"
    if char.isprintable():
        return char
    return "".join(f"\\x{byte:02x}" for byte in os.fsencode(char))
