"""Whatever is sent to a control socket, it refuses in order and goes on serving."""

import json
import os
import shutil
import socket
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshscope.probe.control.messages import (
    MOST_BYTES,
    MessageError,
    Request,
    decode_reply,
    decode_request,
    encode_request,
)
from meshscope.probe.control.server import ControlServer, RequestLog
from meshscope.probe.control.verbs import Choice, Flag, Verb, VerbRegistry, Whole, Word

FIELDS = {"n": Whole(0, 9), "f": Flag(), "c": Choice(("a", "b")), "w": Word()}

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=20,
)
NEAR_MISSES = st.fixed_dictionaries(
    {},
    optional={
        "v": st.sampled_from([1, 1.0, True, "1", None]),
        "verb": st.sampled_from(["status", "exec", "__class__"]) | JSON,
        "fields": st.dictionaries(st.sampled_from([*FIELDS, "path", "__init__"]), JSON) | JSON,
        "code": JSON,
    },
)
PACKETS = st.one_of(
    st.binary(min_size=1, max_size=300),
    st.integers(MOST_BYTES - 2, MOST_BYTES + 40_000).map(lambda size: b"[" * size),
    JSON.map(lambda value: json.dumps(value).encode()),
    NEAR_MISSES.map(lambda value: json.dumps(value).encode()),
)


@pytest.fixture(scope="module")
def server():
    """Serve one verb with a field of each kind, which notes what it was called with."""
    folder = Path(tempfile.mkdtemp(prefix="ms-"))
    registry, calls = VerbRegistry(), []
    registry.add(Verb("status", "Tell.", lambda values: calls.append(values) or {}, FIELDS))
    server = ControlServer(folder / "rank0.1.sock", registry, RequestLog())
    server.start()
    server.calls = calls
    yield server
    server.stop()
    shutil.rmtree(folder)


def send(path, packet):
    """Send one packet and return the reply."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.settimeout(10)
        connection.connect(os.fspath(path))
        connection.send(packet)
        return decode_reply(connection.recv(MOST_BYTES))


@given(packet=PACKETS)
def test_any_packet_is_answered(server, packet):
    """Fails when a packet ends the service, gets no answer, or runs a verb unchecked."""
    server.calls.clear()
    reply = send(server.path, packet)
    for values in server.calls:
        assert reply.ok
        assert values.keys() == FIELDS.keys()
        assert type(values["n"]) is int
        assert type(values["f"]) is bool
        assert values["c"] in ("a", "b")
        assert "/" not in values["w"]
    assert reply.ok == bool(server.calls)
    assert server.log.errors == 0


@given(packet=PACKETS)
def test_decoding_raises_one_error_only(packet):
    """Fails when bytes from outside raise what nobody expects."""
    with suppress(MessageError):
        assert isinstance(decode_request(packet), Request)


@given(verb=st.text(max_size=30), fields=st.dictionaries(st.text(max_size=9), JSON, max_size=3))
def test_requests_survive_the_way(verb, fields):
    """Fails when a request is changed on its way."""
    try:
        packet = encode_request(verb, fields)
    except MessageError:
        return
    assert decode_request(packet) == (verb, json.loads(json.dumps(fields)))
