"""Requests and replies as they travel: one JSON object in one packet of 64 KB at most.

::

    {"v": 1, "verb": "status", "fields": {}}
    {"v": 1, "ok": true, "result": {"rank": 0, "step": 120}}
    {"v": 1, "ok": false, "error": "step 120 has begun already",
     "code": "reply.step_begun", "values": {"step": 120}}
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple, NoReturn

from ..schema.message import Message, message, message_to_json

MOST_BYTES = 64 * 1024
"""Longest packet in either direction."""
VERSION = 1

_REQUEST_KEYS = {"v", "verb", "fields"}
_ERROR_CHARACTERS = 500
"""A sentence or two: a packet must hold it with its values."""


class MessageError(ValueError):
    """A packet is no message of ours.

    Attributes:
        said: Why, as one clause.
    """

    def __init__(self, said: Message) -> None:
        """Keep why; the sentence is made when it is sent."""
        super().__init__(said)
        self.said = said


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
        raise MessageError(_other_version(value))
    if set(value) != _REQUEST_KEYS:
        raise MessageError(message("reply.request_keys", keys=sorted(_REQUEST_KEYS)))
    verb, fields = value["verb"], value["fields"]
    if not isinstance(verb, str) or not isinstance(fields, dict):
        raise MessageError(message("reply.request_types"))
    return Request(verb, fields)


def encode_result(result: Mapping[str, Any]) -> bytes:
    """Return the packet of a reply that grants a request.

    Raises:
        MessageError: It has no JSON form or is longer than a packet may be.
    """
    return _encode({"v": VERSION, "ok": True, "result": dict(result)})


def encode_error(said: Message) -> bytes:
    """Return the packet of a reply that refuses a request; a long one has its text alone, cut."""
    text = {"v": VERSION, "ok": False, "error": str(said)[:_ERROR_CHARACTERS]}
    try:
        return _encode(text | message_to_json(said))
    except MessageError:
        return _encode(text)


def decode_reply(packet: bytes) -> Reply:
    """Return the reply in a packet.

    Raises:
        MessageError: It is too long, no JSON, or no reply of this version.
    """
    value = _decode(packet)
    if value.get("v") != VERSION:
        raise MessageError(_other_version(value))
    ok, result, error = value.get("ok"), value.get("result", {}), value.get("error", "")
    if not isinstance(ok, bool) or not isinstance(result, dict) or not isinstance(error, str):
        raise MessageError(message("reply.reply_keys"))
    return Reply(ok, result, error)


def _other_version(value: Mapping[str, Any]) -> Message:
    return message("reply.other_version", found=repr(value.get("v"))[:40], known=VERSION)


def _encode(value: Mapping[str, Any]) -> bytes:
    try:
        packet = json.dumps(value, allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise MessageError(message("reply.no_json_form", error=str(error))) from error
    if len(packet) > MOST_BYTES:
        raise MessageError(message("reply.too_long", most=MOST_BYTES))
    return packet


def _decode(packet: bytes) -> dict[str, Any]:
    if len(packet) > MOST_BYTES:
        raise MessageError(message("reply.too_long", most=MOST_BYTES))
    try:
        value = json.loads(
            packet.decode("utf-8"), object_pairs_hook=_each_key_once, parse_constant=_no_constant
        )
    except (ValueError, RecursionError) as error:
        raise MessageError(message("reply.no_json", error=str(error))) from error
    if not isinstance(value, dict):
        raise MessageError(message("reply.no_object"))
    return value


def _each_key_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise MessageError(message("reply.key_twice"))
    return found


def _no_constant(name: str) -> NoReturn:
    raise MessageError(message("reply.no_number", name=name))
