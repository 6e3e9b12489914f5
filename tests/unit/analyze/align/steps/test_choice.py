"""Which steps are analysed where a capture holds more of some than of others."""

import numpy as np
import pandas as pd
import pytest
from tests.texts import texts

from meshscope.analyze.align.steps.choice import most_detailed


def chosen(details):
    """Return the choice from the detail of each step, which take 10 ns, and 20 in full."""
    frame = pd.DataFrame(
        {
            "rank": 0,
            "step": range(len(details)),
            "dur_ns": [20 if detail == "full" else 10 for detail in details],
            "detail": details,
        }
    )
    return most_detailed(frame, np.arange(len(details)))


def test_the_steps_of_most_detail_are_analysed_and_the_others_said():
    """An account would take communication that was not recorded for computing."""
    choice = chosen(["full", "sums", "full", "sums", "steps", "full"])
    assert choice.steps.tolist() == [0, 2, 5]
    (limit,) = texts(choice.limits)
    assert "3 steps of 6 left out" in limit
    assert "2 with sums of communication and 1 with their length only" in limit
    assert limit.endswith("those of the account 20 ns")


@pytest.mark.parametrize(
    ("kept", "words"),
    [
        (lambda step: step < 100 or step % 100 == 0, "lie before step 54"),
        (lambda step: step >= 900 or step % 100 == 0, "lie after step 945"),
        (lambda step: step % 10 == 0, None),
        (lambda step: step // 25 % 4 == 0, None),
    ],
    ids=["the first ones", "the last ones", "each tenth", "windows"],
)
def test_it_is_said_where_steps_of_one_part_of_the_run_prevail(kept, words):
    """A reader would take the shares of the first hundred steps for those of a run of a week."""
    limit = " ".join(
        texts(chosen(["full" if kept(step) else "sums" for step in range(1000)]).limits)
    )
    if words is None:
        assert "--steps" not in limit
    else:
        assert words in limit
        assert "--steps FIRST:LAST" in limit
