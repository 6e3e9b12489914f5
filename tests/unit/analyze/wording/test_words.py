"""Words for the classes of the account."""

import numpy as np
import pandas as pd
import pytest

from meshscope.analyze.tables.classes import CLASSES, REFINED
from meshscope.analyze.wording.words import (
    capitalised,
    class_label,
    counted,
    is_missing,
    joined,
    place_words,
    sentence,
)


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("exposed_dp_wait", "DP communication: waiting"),
        ("exposed_other_wire", "other communication: on the wire"),
        ("exposed_memcpy", "exposed memory copies"),
        ("data_load", "data loading"),
    ],
)
def test_a_class_has_words(name, label):
    """If this fails, people read internal names."""
    assert class_label(name) == label


def test_no_two_classes_share_their_words():
    """If this fails, two bars of one waterfall cannot be separated."""
    words = [class_label(name) for name in ("useful", "kernel_inefficiency", *CLASSES, *REFINED)]
    assert len(set(words)) == len(words)


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ({"rank": 3, "steps": [5, 5]}, "rank 3, step 5"),
        ({"axis": "pp", "link": "5<->9", "steps": [4, 7]}, "PP axis, link 5<->9, steps 4 to 7"),
        ({"ranks": [3], "stage": 1}, "rank 3, stage 1"),
        ({"ranks": [3, 5]}, "ranks 3 and 5"),
        ({}, ""),
    ],
)
def test_a_place_has_words(where, words):
    """Fails when one step is shown as a range, one rank as several, or a place by its keys."""
    assert place_words(where) == words


def test_numbers_agree_with_their_nouns():
    """If this fails, reports say '1 ranks'."""
    assert (counted(1, "rank"), counted(2, "rank")) == ("1 rank", "2 ranks")


def test_a_clause_becomes_one_sentence():
    """If this fails, limits from different parts look unlike each other."""
    assert sentence("rank 3 is lost") == "Rank 3 is lost."
    assert sentence("Done.") == "Done."
    assert (capitalised("rank 3"), capitalised("")) == ("Rank 3", "")


def test_items_become_a_list_in_a_sentence():
    """Fails when a list of two has a comma, one of three none, or an empty one ends in a traceback."""
    some = [joined("abc"[:count]) for count in (0, 1, 2, 3)]
    assert some == ["none", "a", "a and b", "a, b and c"]
    assert joined(["x", "y", "z"], "or") == "x, y or z"


@pytest.mark.parametrize("value", [None, float("nan"), np.float64("nan"), pd.NA])
def test_missing_values_of_every_kind(value):
    """If this fails, a missing number is printed or kills the report."""
    assert is_missing(value)
    assert not is_missing(0)
