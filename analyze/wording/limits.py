"""Limits of a result: each once, first those that change how far a number may be trusted.

A limit is a message. Its code begins with what it means to the reader, one of ``MEANINGS``; a text
comes from outside (the reader of a damaged file, an older cache) and is shown with what is missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any, TypeAlias

from .message import Message, Text, message_from_json, message_to_json
from .words import sentence

Limit: TypeAlias = Text


class Meaning(StrEnum):
    """What a limit means to the reader, in the order in which they are shown."""

    DOUBT = "doubt"
    """A number of the result may be wrong, or is a bound only."""
    UNKNOWN = "unknown"
    """A number is not known, and why."""
    MISSING = "missing"
    """Something was not recorded, or is left out."""
    ASSUMED = "assumed"
    """Something was assumed, corrected or inferred."""
    SCOPE = "scope"
    """What the numbers count, and over what."""
    COUNTED = "counted"
    """A counter that changes no number by as much as it is rounded: no text shows it."""


MEANINGS = tuple(Meaning)


def has_code(limit: Limit, code: str) -> bool:
    """Return whether a limit is the message of that code."""
    return isinstance(limit, Message) and limit.code == code


def meaning_of(limit: Limit) -> Meaning:
    """Return what a limit means; a text from outside names what is missing."""
    part = limit.code.partition(".")[0] if isinstance(limit, Message) else ""
    return Meaning(part) if part in MEANINGS else Meaning.MISSING


def ordered(limits: Iterable[Limit]) -> tuple[Limit, ...]:
    """Return each limit once, in the order of ``MEANINGS``; else in the given one."""
    once: dict[str, Limit] = {}
    for limit in limits:
        once.setdefault(limit_text(limit), limit)
    return tuple(sorted(once.values(), key=lambda one: MEANINGS.index(meaning_of(one))))


def limit_text(limit: Limit) -> str:
    """Return a limit as a sentence with its full stop."""
    return sentence(str(limit))


def limit_texts(limits: Iterable[Limit]) -> list[str]:
    """Return limits as sentences, each once, in the order of their meaning; without what is only counted."""
    return [limit_text(one) for one in ordered(limits) if meaning_of(one) is not Meaning.COUNTED]


def limits_to_json(limits: Iterable[Limit]) -> dict[str, Any]:
    """Return the sentences, and the codes and values of all, those only counted too: the keys of a result."""
    shown = ordered(limits)
    return {"limits": limit_texts(shown), "limit_messages": list(map(limit_to_json, shown))}


def limit_to_json(limit: Limit) -> dict[str, Any]:
    """Return code, values and text; a text from outside has no code and no values."""
    said = message_to_json(limit) or {"code": None, "values": {}}
    return said | {"text": limit_text(limit)}


def reason_to_json(because: Text) -> dict[str, Any]:
    """Return why something is unknown, empty where it is known, and the message beside it."""
    return {
        "unknown_because": str(because),
        "messages": {"unknown_because": message_to_json(because) if because else None},
    }


def keep_limits(limits: Sequence[Limit]) -> dict[str, Any]:
    """Return what a file keeps of limits: texts for any reader, and the messages for ``kept_limits``."""
    return {
        "limits": list(map(str, limits)),
        "limit_messages": list(map(message_to_json, limits)),
    }


def kept_limits(section: Mapping[str, Any]) -> tuple[Limit, ...]:
    """Return limits as ``keep_limits`` wrote them; of older files, and of older sentences, the texts.

    Raises:
        KeyError, TypeError: They are not what ``keep_limits`` writes.
    """
    texts = list(map(str, section["limits"]))
    messages = section.get("limit_messages") or [None] * len(texts)
    return tuple(map(_kept, texts, messages))


def _kept(text: str, said: Mapping[str, Any] | None) -> Limit:
    if said is None:
        return text
    found = message_from_json(said)
    try:
        # Another version may have given the sentence another text, or other values.
        return found if str(found) == text else text
    except (KeyError, TypeError, ValueError, AttributeError):
        return text
