"""Lists in sentences."""

from itertools import count

import pytest

from meshscope.probe.schema.listing import listed


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
