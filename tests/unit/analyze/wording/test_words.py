"""Small grammar."""

import numpy as np
import pandas as pd
import pytest

from meshscope.analyze.wording.words import capitalised, counted, is_missing, joined, sentence


def test_numbers_agree_with_their_nouns():
    """If this fails, reports say '1 ranks'."""
    assert (counted(1, "rank"), counted(2, "rank")) == ("1 rank", "2 ranks")


def test_a_clause_becomes_one_sentence():
    """If this fails, limits from different parts look unlike each other."""
    assert sentence("rank 3 is lost") == "Rank 3 is lost."
    assert sentence("Done.") == "Done."
    assert (capitalised("rank 3"), capitalised("")) == ("Rank 3", "")


def test_items_become_a_list_in_a_sentence():
    """Fails when a list of two has a comma, or one of three none."""
    assert [joined("abc"[:count]) for count in (1, 2, 3)] == ["a", "a and b", "a, b and c"]
    assert joined(["x", "y", "z"], "or") == "x, y or z"


@pytest.mark.parametrize("value", [None, float("nan"), np.float64("nan"), pd.NA])
def test_missing_values_of_every_kind(value):
    """If this fails, a missing number is printed or kills the report."""
    assert is_missing(value)
    assert not is_missing(0)
