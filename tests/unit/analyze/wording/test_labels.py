"""Words for the classes of the account."""

import pytest

from meshscope.analyze.tables.classes import CLASSES, REFINED
from meshscope.analyze.wording.labels import class_label, place_words


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
