"""Text from files reaches a terminal without power over it."""

import pytest

from meshscope.probe.schema.errors import TraceFormatError
from meshscope.probe.schema.printable import printable


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
