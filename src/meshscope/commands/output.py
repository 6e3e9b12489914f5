"""Writing results to stdout, and remarks to stderr."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from meshscope.probe.schema.printable import printable

from .options import Format
from .terminal import fitted, terminal_width


def print_json(value: dict[str, Any]) -> None:
    """Write JSON; a value that is not finite becomes null, and a numpy scalar its number."""
    import msgspec

    encoded = msgspec.json.encode(value, enc_hook=lambda scalar: scalar.item())
    emit(msgspec.json.format(encoded, indent=1).decode())


def show(
    output: Format,
    as_json: Callable[[], dict[str, Any]],
    as_text: Callable[..., str],
    following: str,
) -> None:
    """Write a result in the form that was asked for.

    Args:
        output: The form.
        as_json: Returns the result for programs.
        as_text: Returns it for people; gets ``markdown``.
        following: The line that names the next command; ends a text only.
    """
    if output is Format.JSON:
        print_json(as_json())
        return
    if output is Format.MARKDOWN:
        emit(as_text(markdown=True))
        return
    emit_report(as_text(markdown=False))
    # A command is copied as one line.
    emit(following)


def emit_report(text: str) -> None:
    """Write a text for people, as wide as their terminal; unchanged where there is none."""
    width = terminal_width()
    emit(text if width is None else fitted(text, width))


def emit(text: str) -> None:
    """Write a result to stdout; a reader that has gone (head, less) ends no command."""
    try:
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def say(clause: str) -> None:
    """Write one line to stderr."""
    with suppress(BrokenPipeError):
        sys.stderr.write(f"meshscope: {printable(clause)}\n")
