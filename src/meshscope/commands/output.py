"""Writing results to stdout, and remarks to stderr."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from meshscope.probe.schema.printable import printable

from .terminal import terminal_width

if TYPE_CHECKING:
    from meshscope.analyze.output.document import Document
    from meshscope.analyze.tables.results import Finding


class Format(StrEnum):
    """How a result is written."""

    TEXT = "text"
    JSON = "json"
    MARKDOWN = "markdown"


def print_json(value: dict[str, Any]) -> None:
    """Write JSON; a value that is not finite becomes null, and a numpy scalar its number."""
    import msgspec

    encoded = msgspec.json.encode(value, enc_hook=lambda scalar: scalar.item())
    emit(msgspec.json.format(encoded, indent=1).decode())


def show_document(
    output: Format,
    as_json: Callable[[], dict[str, Any]],
    document: Callable[[], Document],
    following: str,
    ends: Sequence[Finding] = (),
) -> None:
    """Write a result in the form that was asked for.

    Args:
        output: The form.
        as_json: Returns the result for programs.
        document: Returns it for people.
        following: The line that names the next command; ends a text only.
        ends: How the job ended, where it broke off: the first word of a result.
    """
    if output is Format.JSON:
        print_json(with_ends(as_json(), ends))
        return
    from meshscope.analyze.output.render import to_markdown

    if output is Format.MARKDOWN:
        emit(above_markdown(ends) + to_markdown(document()))
        return
    emit_document(document(), ends)
    # A command is copied as one line.
    emit(following)


def emit_document(document: Document, ends: Sequence[Finding] = ()) -> None:
    """Write a document for people, as wide as their terminal; unchanged where there is none."""
    width = terminal_width()
    if width is None:
        from meshscope.analyze.output.render import to_plain

        emit(above_text(ends) + to_plain(document))
    else:
        from .terminal import on_terminal

        emit(above_text(ends) + on_terminal(document, width))


def above_text(ends: Sequence[Finding]) -> str:
    """Return how the job ended as the first lines of a text; empty where it did not break off."""
    lines = [f"[{end.severity}] {end.kind}: {end.claim}" for end in ends]
    return "\n".join([*lines, "", ""]) if lines else ""


def above_markdown(ends: Sequence[Finding]) -> str:
    """Return the same for Markdown."""
    return "".join(f"**[{end.severity}] {end.kind}: {end.claim}**\n\n" for end in ends)


def with_ends(value: dict[str, Any], ends: Sequence[Finding]) -> dict[str, Any]:
    """Return a result for programs, with how the job ended where it broke off."""
    if not ends:
        return value
    from meshscope.analyze.output.json.diagnosis import finding_to_json

    return {**value, "ended": [finding_to_json(end) for end in ends]}


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
