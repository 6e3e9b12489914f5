"""Small grammar."""

import numpy as np
import pandas as pd
import pytest

from meshscope.analyze.words import counted, is_missing, sentence


def test_numbers_agree_with_their_nouns():
    """If this fails, reports say '1 ranks'."""
    assert (counted(1, "rank"), counted(2, "rank")) == ("1 rank", "2 ranks")


def test_a_clause_becomes_one_sentence():
    """If this fails, limits from different parts look unlike each other."""
    assert sentence("rank 3 is lost") == "Rank 3 is lost."
    assert sentence("Done.") == "Done."


@pytest.mark.parametrize("value", [None, float("nan"), np.float64("nan"), pd.NA])
def test_missing_values_of_every_kind(value):
    """If this fails, a missing number is printed or kills the report."""
    assert is_missing(value)
    assert not is_missing(0)
