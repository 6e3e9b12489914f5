"""Errors of usage in our own words: what, where and the remedy, on one line."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, cast

import typer

from meshscope.analyze.wording.command_line import command_line

from .gate_verbs import CHECK

UsageError = cast("type[Exception]", typer.BadParameter.__mro__[1])
"""What is raised for a command line that cannot be understood; its home varies with typer."""

_NO_VERB = re.compile(r"No such command '(.+?)'")
_PLAIN = (
    (r"(?i)value error, (.*)", r"\1"),
    (r"(?i)input should be greater than or equal to (.*)", r"must be at least \1"),
    (r"(?i)input should be less than or equal to (.*)", r"must be at most \1"),
    (r"(?i)input should be (.*)", r"must be \1"),
    (r"(.+) is not in the range x>=(.+)", r"must be at least \2"),
    (r"(.+) is not in the range x<=(.+)", r"must be at most \2"),
    (r"(.+) is not in the range (.+)<=x<=(.+)", r"must be from \2 to \3"),
)
"""Messages as versions of typer have them, and what we say."""


def usage_words(error: Any) -> str | None:
    """Return a usage error as one line; None for a command without words, which gets its help."""
    if type(error).__name__ == "NoArgsIsHelpError":
        return None
    context, parameter = error.ctx, getattr(error, "param", None)
    what = str(error.message or "").rstrip(".") or "is missing"
    place = "" if parameter is None else f"{_name(parameter)}: "
    if parameter is None:
        what = str(error.format_message()).rstrip(".")
    named = _NO_VERB.match(what)
    if named and Path(named[1]).exists():
        return f"{named[1]} is not a command. Run: {command_line('diagnose', named[1])}"
    program = "meshscope" if context is None else _command_of(context)
    end = "" if what.endswith("?") else "."
    return f"{place}{_lowered(_plain(what))}{end} See {program} --help"


def _name(parameter: Any) -> str:
    if parameter.param_type_name == "option":
        return str(max(parameter.opts, key=len))
    return str(getattr(parameter, "metavar", None) or parameter.name)


def _command_of(context: Any) -> str:
    words: list[str] = []
    while context.parent is not None:
        words.insert(0, context.info_name)
        context = context.parent
    # `check` is what a gate does without a word.
    return " ".join(["meshscope", *words]).removesuffix(f" {CHECK}")


def _plain(what: str) -> str:
    for pattern, words in _PLAIN:
        if found := re.fullmatch(pattern, what):
            return found.expand(words)
    return what


def _lowered(what: str) -> str:
    return what[:1].lower() + what[1:]
