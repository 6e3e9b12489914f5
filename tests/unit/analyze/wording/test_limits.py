"""Limits: messages in the order of what they mean, in files and in results."""

import json

import pytest

from meshscope.analyze.wording.limits import (
    MEANINGS,
    keep_limits,
    kept_limits,
    limit_texts,
    limits_to_json,
    ordered,
)
from meshscope.analyze.wording.message import catalogue, message

CUT = message("assumed.cut_steps", count=2, most_ns=2_000_000.0)
OUTSIDE = "rank 3: seg-000002.arrows is torn"
STAGES = message("unknown.stages")
LONG = message(
    "doubt.long_steps",
    long=1,
    steps=9,
    ratio=3.0,
    shown=[message("doubt.long_step", step=8, length_ns=1.7e9)],
    beyond=0.4,
    rest_ns=5e7,
)


def test_what_changes_trust_comes_first_and_nothing_twice():
    """Fails when a reader has to look for the limit that makes a number wrong among what was left out."""
    found = ordered([CUT, OUTSIDE, STAGES, LONG, CUT, OUTSIDE])
    assert found == (LONG, STAGES, OUTSIDE, CUT)


def test_a_limit_is_a_sentence_with_its_code_beside():
    """Fails when a program has to take numbers out of a sentence, or a person to read a clause."""
    form = limits_to_json([CUT, OUTSIDE])
    assert form["limits"] == limit_texts([CUT, OUTSIDE])
    assert form["limits"][0] == "Rank 3: seg-000002.arrows is torn."
    outside, cut = form["limit_messages"]
    assert (outside["code"], outside["values"]) == (None, {})
    assert (cut["code"], cut["values"]["most_ns"]) == ("assumed.cut_steps", 2e6)
    assert [one["text"] for one in form["limit_messages"]] == form["limits"]


@pytest.mark.parametrize("limit", [CUT, OUTSIDE, STAGES, LONG], ids=str)
def test_a_limit_survives_a_file(limit):
    """Fails when an ingested run has other limits than its source."""
    kept = json.loads(json.dumps(keep_limits([limit])))
    assert kept_limits(kept) == (limit,)


@pytest.mark.parametrize(
    "messages",
    [
        {},
        {"limit_messages": [{"code": "gone.code", "values": {}}]},
        {"limit_messages": [{"code": "assumed.cut_steps", "values": {"count": 2}}]},
        {"limit_messages": [{"code": "assumed.cut_steps", "values": {"count": 3, "most_ns": 1}}]},
    ],
    ids=["older file", "no such code", "other values", "another sentence"],
)
def test_limits_of_another_version_stay_what_they_said(messages):
    """Fails when a capture of an older version ends in a traceback, or says something else."""
    assert kept_limits({"limits": [str(CUT)], **messages}) == (str(CUT),)


def test_every_meaning_has_limits():
    """Fails when a part of the catalogue is spelled otherwise than a meaning: its limits came last."""
    assert {code.partition(".")[0] for code in catalogue()} >= set(MEANINGS)
