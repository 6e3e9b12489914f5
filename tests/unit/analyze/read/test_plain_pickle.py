"""Pickles from strangers: plain values come through, nothing else does, nothing is run."""

import pickle

import pytest

from meshscope.analyze.read.plain_pickle import load_plain
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
