"""Pickles from strangers: plain values come through, nothing else does, nothing is run."""

import contextlib
import io
import pickle
import pickletools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshscope.analyze.read.plain_pickle import is_plain, load_plain
from meshscope.probe.schema.errors import TraceFormatError

RAN: list[str] = []


class Payload:
    """Asks to be rebuilt by a call, as any object with code would."""

    def __reduce__(self):
        """Return the call that an unpickler would make."""
        return RAN.append, ("it ran",)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_plain_values_come_through(protocol):
    """Dumps of some versions could not be read."""
    value = {"entries": [{"n": 2**40, "s": ("1", "é"), "f": 0.5, "b": True, "none": None}, []]}
    assert load_plain(pickle.dumps(value, protocol), "dump") == value


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_nothing_is_called(protocol):
    """A file could run code on the machine of whoever looks at it."""
    content = pickle.dumps({"entries": [], "pg_config": Payload()}, protocol)
    with pytest.raises(TraceFormatError, match="more than contain plain values") as caught:
        load_plain(content, "dump")
    assert RAN == []
    assert caught.value.where == "dump"
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "content",
    [
        b"\x80\x02cos\nsystem\n.",
        b"\x80\x02(ios\nsystem\n.",
        b"\x80\x02X\x01\x00\x00\x00aQ.",
        b"Psomewhere\n.",
        b"\x80\x02\x82\x01.",
        b"\x80\x02}2.",
        b"\x80\x04\x8f.",
    ],
    ids=["global", "inst", "persistent", "persistent text", "extension", "dup", "set"],
)
def test_what_a_dump_never_holds_is_refused(content):
    """Names or outside objects would be looked up."""
    with pytest.raises(TraceFormatError, match="plain values"):
        load_plain(content, "dump")


@pytest.mark.parametrize(
    "content",
    [
        b"\x80\x02}K\x01" + b"\x85" * 300_000 + b"K\x01s.",
        b"\x80\x02h\xff.",
        b"\x80\x02" + b"(" * 100_000 + b".",
    ],
    ids=["deep key", "unknown memory", "marks"],
)
def test_programs_that_crash_an_unpickler_are_errors(content):
    """A small file could take the whole process down."""
    with pytest.raises(TraceFormatError, match="damaged"):
        load_plain(content, "dump")


def test_a_huge_memory_index_allocates_nothing():
    """A file of ten bytes could fill the memory."""
    assert load_plain(b"\x80\x02K\x07r\xff\xff\xff\x7f.", "dump") == 7


@pytest.mark.parametrize("kept", [0, 1, 5, -1, -7])
def test_a_torn_file_is_an_error_of_one_line(kept):
    """A full disk at the moment of the dump would end in a traceback."""
    whole = pickle.dumps({"entries": [1, 2, 3], "version": "2.9"}, 2)
    with pytest.raises(TraceFormatError, match="damaged"):
        load_plain(whole[:kept], "dump")


@pytest.mark.parametrize(
    "content",
    [b"\x80\x02.", b"\x80\x02h\x05.", b"\x80\x02]u.", b"\x80\x02}]s.", b"\x80\x02K\x01K\x02a."],
)
def test_a_program_without_sense_is_an_error_of_one_line(content):
    """Any error of the unpickler would reach the user as a traceback."""
    with pytest.raises(TraceFormatError, match="damaged"):
        load_plain(content, "dump")


PLAIN = {
    *("PROTO", "FRAME", "MEMOIZE", "MARK", "STOP", "NONE", "NEWTRUE", "NEWFALSE"),
    *("EMPTY_DICT", "EMPTY_LIST", "EMPTY_TUPLE", "TUPLE1", "TUPLE2"),
    *("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "SHORT_BINUNICODE", "BINUNICODE"),
    *("APPEND", "APPENDS", "SETITEM", "SETITEMS"),
    *("BINGET", "LONG_BINGET", "BINPUT", "LONG_BINPUT"),
}
SCALARS = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text()
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(st.text() | st.integers(), inner)
        | st.tuples(st.integers(0, 255), st.integers())
    ),
    max_leaves=40,
)


@pytest.mark.parametrize("protocol", [4, 5])
def test_a_dump_of_the_allocator_is_known_to_be_plain(protocol):
    """Snapshots of 100 MB would be read at a tenth of the speed."""
    shared = [{"name": "f" * 300, "filename": "model.py", "line": line} for line in range(400)]
    trace = [
        {"action": "alloc", "addr": 0x7F00_0000_0000 + n, "size": 512, "frames": shared[n : n + 9]}
        for n in range(391)
    ]
    snapshot = {"segments": [{"segment_pool_id": (0, 0), "blocks": []}], "device_traces": [trace]}
    content = pickle.dumps(snapshot, protocol)
    assert is_plain(content, 1_000_000)
    assert load_plain(content, "dump") == snapshot


@given(VALUES, st.sampled_from([2, 3, 4, 5]))
def test_what_is_read_is_what_was_dumped(value, protocol):
    """Fast reading would give other values than careful reading."""
    content = pickle.dumps(value, protocol)
    assert pickle.dumps(load_plain(content, "dump")) == pickle.dumps(pickle.loads(content))


@given(VALUES, st.sampled_from([2, 4, 5]), st.data())
def test_no_other_operation_gets_through(value, protocol, data):
    """A file with one changed byte could have any function called."""
    content = bytearray(pickle.dumps(value, protocol))
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(2, len(content) - 1))] = data.draw(st.integers(0, 255))
    if is_plain(bytes(content), 1_000_000):
        with contextlib.suppress(UnicodeDecodeError):
            for operation, _, _ in pickletools.genops(bytes(content)):
                assert operation.name in PLAIN
    with contextlib.suppress(TraceFormatError):
        load_plain(bytes(content), "dump")


@pytest.mark.parametrize(
    "content",
    [
        b"\x80\x02cos\nsystem\n.",
        b"\x80\x04\x8c\x02os\x8c\x06system\x93.",
        b"\x80\x04K\x01K\x02\x86\x94h\x00h\x00\x86.",
        b"\x80\x02K\x07r\xff\xff\xff\x7f.",
        b"\x80\x04\x96\xff\xff\xff\xff\x00\x00\x00\x00.",
        b"\x80\x04X\xff\xff\xff\xff.",
        b"\x80\x04K\x01",
        b"K\x01.",
        b"",
    ],
    ids=[
        *("global", "stack global", "tuple of tuples", "far place", "huge bytes", "huge text"),
        *("no end", "no protocol", "empty"),
    ],
)
def test_what_could_do_harm_is_not_plain(content):
    """Code could run, or the memory fill up, before anything is refused."""
    assert not is_plain(content, 1_000)


def test_a_longer_program_than_allowed_is_not_plain():
    """A packed file could unpack into more containers than the machine can hold."""
    content = b"\x80\x04(" + b"]" * 5_000 + b"l."
    with pytest.raises(TraceFormatError, match="longer"):
        load_plain(content, "dump", most_operations=4_000)
    assert not is_plain(pickle.dumps([[] for _ in range(5_000)]), 4_000)


def test_an_unpickler_looks_up_nothing():
    """A hole in the check would be a hole in the machine of the reader."""
    from meshscope.analyze.read import plain_pickle

    with pytest.raises(plain_pickle._ForeignOperationError):
        plain_pickle._Unpickler(io.BytesIO(b"\x80\x02cos\nsystem\n.")).load()
