"""Stamps of Kineto events become integer nanoseconds, exactly as decimal arithmetic has them."""

from decimal import ROUND_HALF_EVEN, Decimal, InvalidOperation

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshscope.analyze.read.kineto.stamps import LATEST_NS, readable_stamps

FRACTIONS = st.from_regex(r"-?(0|[1-9][0-9]{0,14})\.[0-9]{1,3}", fullmatch=True)
WHOLE = st.integers(-(10**19), 10**19).map(str)
FINE = st.from_regex(r"-?[1-9][0-9]{0,9}\.[0-9]{4,9}(e[+-]?[0-3])?", fullmatch=True)
QUOTED = FRACTIONS.map('"{}"'.format)
NO_TIMES = st.sampled_from(["null", '""', '"0x12"', '"1,2"', '"1.2.3"', "[1,2]", "{}", "true"])


def read(texts):
    """Return the stamps of JSON values, and which of the values they are."""
    content = f"[{','.join(texts)}]"
    stamps, is_time = readable_stamps(msgspec.json.decode(content, type=list[msgspec.Raw]))
    return stamps.tolist(), is_time.tolist()


def exact(text):
    """Return what decimal arithmetic makes of a value, None where it is no time."""
    try:
        ns = Decimal(text.strip('"')) * 1000
    except InvalidOperation:
        return None
    ns = int(ns.quantize(Decimal(1), ROUND_HALF_EVEN))
    return ns if abs(ns) < LATEST_NS else None


@settings(max_examples=200)
@given(st.lists(FRACTIONS | st.integers(0, 4 * 10**15).map(str), max_size=20))
def test_plain_stamps_are_exact(texts):
    """A whole batch would be moved by a factor of ten for one stamp with fewer digits."""
    assert read(texts) == ([exact(text) for text in texts], [True] * len(texts))


@settings(max_examples=200)
@given(st.lists(FRACTIONS | WHOLE | FINE | QUOTED | NO_TIMES, max_size=12))
def test_stamps_of_any_form_are_exact_or_left_out(texts):
    """One odd stamp would change those of the other events in its batch."""
    expected = [exact(text) for text in texts]
    assert read(texts) == (
        [ns for ns in expected if ns is not None],
        [ns is not None for ns in expected],
    )


@pytest.mark.parametrize("text", ["-9223372036854775808", "9223372036854775.808", "1e40"])
def test_stamps_beyond_all_years_are_no_times(text):
    """A number that wraps around in 64 bits would look like a time."""
    assert read(["5", text]) == ([5000], [True, False])
