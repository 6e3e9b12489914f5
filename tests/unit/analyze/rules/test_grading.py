"""Why a repair returns little is said as it is."""

import pytest

from meshscope.analyze.results import Cause
from meshscope.analyze.rules.grading import hidden_note


def cause(share, gain):
    """Return a slow rank with this share and removal gain."""
    return Cause(
        kind="straggler_rank",
        where={"rank": 1},
        share_frac=share,
        removal_gain_frac=gain,
        direct_ns=0.0,
        induced_wait_ns=0.0,
    )


@pytest.mark.parametrize(
    ("share", "gain", "note"),
    [
        (0.05, 0.03, ""),
        (0.04, 0.0001, "; repairing it alone returns nothing, because another cause hides it"),
        (0.04, -0.01, "; repairing it alone returns nothing, because another cause hides it"),
        (
            0.04,
            0.0084,
            "; repairing it alone returns only 0.8% of the step, because another cause hides it",
        ),
        (0.0101, 0.0099, ""),
        (0.0002, 0.0, "; repairing it returns nothing, because ranks have time to spare there"),
    ],
)
def test_only_what_others_hide_is_called_hidden(share, gain, note):
    """Fails when a rank that nothing hides, or that returns something, is told as hidden."""
    assert hidden_note(cause(share, gain)) == note
