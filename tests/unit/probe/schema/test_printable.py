"""Text from files reaches a terminal without power over it."""

from itertools import count

import pytest

from meshscope.probe.schema.errors import TraceFormatError
from meshscope.probe.schema.printable import listed, printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("rank 1 \u00e9 \u96f6 …", "rank 1 \u00e9 \u96f6 …"),
        ("a\x1b[31mb", r"a\x1b[31mb"),
        ("a\nb\tc\rd", r"a\nb\tc\rd"),
        ("a\x00\x7f\x9b", r"a\x00\x7f\x9b"),
        ("a\u202eb\u2028", r"a\u202eb\u2028"),
        ("a\udcff", r"a\udcff"),
    ],
)
def test_what_does_not_print_is_escaped(text, shown):
    """A file name could clear the screen, forge a line, or end the program when it is printed."""
    assert printable(text) == shown


def test_an_error_is_one_line():
    """A name or a library's message with line ends would tear an error apart."""
    error = TraceFormatError("bad\nthing", where="rank\x1b1", remedy="Copy\nit")
    assert str(error) == r"rank\x1b1: bad\nthing. Copy\nit"
    assert error.where == "rank\x1b1"


@pytest.mark.parametrize(
    ("items", "text"), [([], ""), ([3], "3"), ([3, 5], "3, 5"), ([3, 5, 6, 9], "3, 5 and 2 more")]
)
def test_what_is_not_named_is_counted(items, text):
    """Fails when a list ends as if there were no more, or counts what it has named."""
    assert listed(items, most=2) == text
    assert listed(iter(items), most=2) == text


def test_a_list_without_end_is_not_gone_through():
    """Fails when naming the first missing ranks of a torn manifest takes for ever."""
    assert listed(count(), count=10**9, most=2) == "0, 1 and 999999998 more"
