"""Requests and replies as they travel: one JSON object in one packet of 64 KB at most.

::

    {"v": 1, "verb": "status", "fields": {}}
    {"v": 1, "ok": true, "result": {"rank": 0, "step": 120}}
    {"v": 1, "ok": false, "error": "the step has passed"}
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple, NoReturn

MOST_BYTES = 64 * 1024
"""Longest packet in either direction."""
VERSION = 1

_REQUEST_KEYS = {"v", "verb", "fields"}
_ERROR_CHARACTERS = 500


class MessageError(ValueError):
    """A packet is no message of ours; the text is one clause."""


class Request(NamedTuple):
    """What a client asks for; the fields are not checked yet."""

    verb: str
    fields: dict[str, object]


class Reply(NamedTuple):
    """What a server answers."""

    ok: bool
    result: dict[str, Any]
    """Empty when refused."""
    error: str
    """Why it was refused; else empty."""


def encode_request(verb: str, fields: Mapping[str, object]) -> bytes:
    """Return the packet of a request.

    Raises:
        MessageError: It would be longer than a packet may be.
    """
    return _encode({"v": VERSION, "verb": verb, "fields": dict(fields)})


def decode_request(packet: bytes) -> Request:
    """Return the request in a packet.

    Raises:
        MessageError: It is too long, no JSON, or no request of this version.
    """
    value = _decode(packet)
    if value.get("v") != VERSION or isinstance(value["v"], bool):
        raise MessageError(f"the message has version {value.get('v')!r:.40}, not {VERSION}")
    if set(value) != _REQUEST_KEYS:
        raise MessageError(f"a request has the keys {', '.join(sorted(_REQUEST_KEYS))}")
    verb, fields = value["verb"], value["fields"]
    if not isinstance(verb, str) or not isinstance(fields, dict):
        raise MessageError("verb must be a word and fields an object")
    return Request(verb, fields)


def encode_result(result: Mapping[str, Any]) -> bytes:
    """Return the packet of a reply that grants a request.

    Raises:
        MessageError: It has no JSON form or is longer than a packet may be.
    """
    return _encode({"v": VERSION, "ok": True, "result": dict(result)})


def encode_error(text: str) -> bytes:
    """Return the packet of a reply that refuses a request; a long text is cut."""
    return _encode({"v": VERSION, "ok": False, "error": text[:_ERROR_CHARACTERS]})


def decode_reply(packet: bytes) -> Reply:
    """Return the reply in a packet.

    Raises:
        MessageError: It is too long, no JSON, or no reply of this version.
    """
    value = _decode(packet)
    if value.get("v") != VERSION:
        raise MessageError(f"the reply has version {value.get('v')!r:.40}, not {VERSION}")
    ok, result, error = value.get("ok"), value.get("result", {}), value.get("error", "")
    if not isinstance(ok, bool) or not isinstance(result, dict) or not isinstance(error, str):
        raise MessageError("the reply lacks its keys")
    return Reply(ok, result, error)


def _encode(value: Mapping[str, Any]) -> bytes:
    try:
        packet = json.dumps(value, allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise MessageError(f"the message has no JSON form: {error}") from error
    if len(packet) > MOST_BYTES:
        raise MessageError(f"the message has {len(packet)} bytes, more than {MOST_BYTES}")
    return packet


def _decode(packet: bytes) -> dict[str, Any]:
    if len(packet) > MOST_BYTES:
        raise MessageError(f"the message has more than {MOST_BYTES} bytes")
    try:
        value = json.loads(
            packet.decode("utf-8"), object_pairs_hook=_each_key_once, parse_constant=_no_constant
        )
    except (ValueError, RecursionError) as error:
        raise MessageError(f"the message is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise MessageError("the message is not a JSON object")
    return value


def _each_key_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise MessageError("a key comes twice")
    return found


def _no_constant(name: str) -> NoReturn:
    raise MessageError(f"{name} is no number of JSON")
