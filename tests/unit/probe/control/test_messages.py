"""Packets: their form, their bound, and what is no packet of ours."""

import json

import pytest

from meshscope.probe.control.messages import (
    MOST_BYTES,
    MessageError,
    Reply,
    Request,
    decode_reply,
    decode_request,
    encode_error,
    encode_request,
    encode_result,
)
from meshscope.probe.schema.message import message


def test_messages_arrive_as_they_were_sent():
    """Fails when a request or reply changes on its way."""
    assert decode_request(encode_request("arm", {"a": 1})) == Request("arm", {"a": 1})
    assert decode_reply(encode_result({"step": 3})) == Reply(True, {"step": 3}, "")
    refusal = encode_error(message("reply.step_begun", step=7))
    assert decode_reply(refusal) == Reply(False, {}, "step 7 has begun already")


def test_a_refusal_has_code_and_values():
    """Fails when a program would have to read the sentence to know why it was refused."""
    inside = message("reply.out_of_range", least=1, most=9)
    sent = json.loads(encode_error(message("reply.field", verb="arm", name="steps", error=inside)))
    assert sent["error"] == "arm: steps must be from 1 to 9"
    assert sent["code"] == "reply.field"
    assert sent["values"]["error"] == {
        "code": "reply.out_of_range",
        "values": {"least": 1, "most": 9},
    }


GOOD = {"v": 1, "verb": "status", "fields": {}}


@pytest.mark.parametrize(
    ("packet", "clause"),
    [
        (b"", "not valid JSON"),
        (b"\xff\xfe", "not valid JSON"),
        (b"[]", "not a JSON object"),
        (b"[" * 60_000, "not valid JSON"),
        (b'{"v": ' + b"9" * 5000 + b"}", "not valid JSON"),
        (b" " * (MOST_BYTES + 1), "more than"),
        (b'{"v": 1, "v": 1}', "a key comes twice"),
        (b'{"v": NaN}', "not a JSON number"),
        (json.dumps({**GOOD, "v": 2}).encode(), "version 2"),
        (json.dumps({**GOOD, "v": True}).encode(), "version True"),
        (json.dumps({**GOOD, "code": "x"}).encode(), "a request has the keys"),
        (json.dumps({**GOOD, "verb": 1}).encode(), "verb must be a word"),
        (json.dumps({**GOOD, "fields": []}).encode(), "fields an object"),
    ],
)
def test_anything_else_is_refused(packet, clause):
    """Fails when bytes that are no request are taken for one, or raise something else."""
    with pytest.raises(MessageError, match=clause):
        decode_request(packet)


def test_replies_of_others_are_refused():
    """Fails when the client believes what no server of ours says."""
    for packet in (b"{}", b'{"v": 1}', b'{"v": 1, "ok": true, "result": 3}'):
        with pytest.raises(MessageError):
            decode_reply(packet)


def test_what_is_too_long_is_not_sent():
    """Fails when a packet is sent that the other end will refuse."""
    with pytest.raises(MessageError, match="more than 65536"):
        encode_request("arm", {"a": "x" * MOST_BYTES})
    with pytest.raises(MessageError, match="no JSON form"):
        encode_result({"a": object()})
    too_long = message("reply.failed", kind="OSError", error="x" * MOST_BYTES)
    assert len(encode_error(too_long)) < 1000
