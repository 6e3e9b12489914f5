"""Medians that leave out the row they are compared with, and rows that do not count."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from meshscope.analyze.centres import median_of_others

ROWS = st.lists(
    st.tuples(st.integers(-50, 50), st.integers(0, 2), st.integers(0, 1), st.booleans()),
    min_size=1,
    max_size=24,
)


def slowly(rows, *, all_count):
    """Return the medians by the definition, row by row."""
    result = []
    for place, (_, *keys, _) in enumerate(rows):
        others = [
            own
            for other, (own, *theirs, counts) in enumerate(rows)
            if other != place and theirs == keys and (all_count or counts)
        ]
        result.append(np.median(others) if others else np.nan)
    return result


@given(rows=ROWS, all_count=st.booleans())
def test_a_row_is_compared_with_the_others_that_count(rows, all_count):
    """Fails when a rank is compared with itself, with another group, or with ranks that are slow too."""
    value, first, second, counts = (np.array(column) for column in zip(*rows, strict=True))
    found = median_of_others(
        value.astype(float), first, second, counts=None if all_count else counts
    )
    np.testing.assert_array_equal(found, slowly(rows, all_count=all_count))
