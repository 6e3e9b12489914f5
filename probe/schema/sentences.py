"""The sentences of errors, and how their values are written.

The form of a value stands after its colon::

    {known:all}     a, b, c        every one, however many
    {items:series}  a; b
    {value:short}   1.234e+15
    {text!r:cut}    its first 60 characters
    {n:number}      1,024
    {least:g}       0.5, -100000   a setting as a user writes it
    {share:percent2} 1.25 %
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from importlib.resources import files
from math import isfinite
from string import Formatter
from typing import Any

ERRORS = "errors.toml"
"""What is wrong, and what to do now: of every part, the analyses too."""


_HEADER = re.compile(r"^\[(\w+)\].*\n", re.MULTILINE)


class Sentences(Mapping[str, str]):
    """The sentences of files by their codes; no part is in two files.

    A part is parsed when one of its sentences is wanted: few commands need more than two.
    """

    def __init__(self, *texts: str) -> None:
        self._parts: dict[str, str | dict[str, str]] = {}
        for text in texts:
            _, *parts = _HEADER.split(text)
            self._parts |= zip(parts[::2], parts[1::2], strict=True)

    def _part(self, name: str) -> dict[str, str]:
        found = self._parts[name]
        if isinstance(found, str):
            self._parts[name] = found = tomllib.loads(found)
        return found

    def __getitem__(self, code: str) -> str:
        part, _, name = code.partition(".")
        try:
            return self._part(part)[name]
        except KeyError:
            raise KeyError(code) from None

    def __iter__(self) -> Iterator[str]:
        return (f"{part}.{name}" for part in self._parts for name in self._part(part))

    def __len__(self) -> int:
        return sum(len(self._part(part)) for part in self._parts)


def text_of(package: str, file: str) -> str:
    """Return the text of a file that lies in a package."""
    return files(package).joinpath(file).read_text(encoding="utf-8")


def text_of_errors() -> str:
    """Return the text of the file of errors."""
    return text_of(__package__, ERRORS)


@cache
def error_sentences() -> Sentences:
    """Return the sentences of all errors by their code."""
    return Sentences(text_of_errors())


def error_sentence(code: str, values: Mapping[str, Any]) -> str:
    """Return the text of an error; code and values where its sentence cannot be read any more.

    Raises:
        KeyError: There is no such code.
    """
    try:
        template = error_sentences()[code]
    except OSError:  # A package that was replaced or removed while the process runs.
        return f"{code} {dict(values)}"
    return _FORMATTER.vformat(template, (), values)


def number(value: float) -> str:
    """Return a number with separators of thousands; a whole one without a point.

    >>> number(16384), number(2.5)
    ('16,384', '2.5')
    """
    return f"{value:,.{0 if float(value).is_integer() else 1}f}" if isfinite(value) else "unknown"


def _general(value: float) -> str:
    return f"{value:g}"


def _percent2(share: float) -> str:
    return f"{100 * share:.2f} %"


def _short(value: float) -> str:
    return f"{value:.4g}"


def _all(items: Iterable[Any]) -> str:
    return ", ".join(map(str, items))


def _series(items: Iterable[Any]) -> str:
    return "; ".join(map(str, items))


def _cut(text: object) -> str:
    return str(text)[:60]


FORMS: dict[str, Callable[[Any], str]] = {
    "all": _all,
    "series": _series,
    "short": _short,
    "cut": _cut,
    "number": number,
    "g": _general,
    "percent2": _percent2,
}


class SentenceFormatter(Formatter):
    """Fills the braces of a sentence."""

    forms: Mapping[str, Callable[[Any], str]] = FORMS

    def format_field(self, value: Any, format_spec: str) -> str:
        """Return a value in its form.

        Raises:
            ValueError: There is no such form.
        """
        if (make := self.forms.get(format_spec)) is not None:
            return make(value)
        if format_spec:
            raise ValueError(f"no form is called {format_spec!r}")
        return str(value)


_FORMATTER = SentenceFormatter()
