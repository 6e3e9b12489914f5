"""Messages: data for programs, a sentence for people."""

import json
import pickle
from datetime import date

import numpy as np
import pytest

from meshscope.analyze.wording.message import (
    Message,
    cells_to_json,
    error_to_json,
    message,
    message_to_json,
)
from meshscope.probe.schema.errors import ConfigError


def test_a_message_is_its_sentence():
    """Nobody would see what the numbers mean."""
    when = Message("steps.runs", {"runs": [(5, 12), (17, 20)]})
    found = Message("sequence_imbalance.by_lengths", {"when": when})
    assert str(found) == (
        "Pass times follow the recorded sequence lengths, in steps 5-12 and 17-20: uneven data, no slow rank"
    )


def test_a_message_is_json():
    """A program would have to take numbers out of a sentence again."""
    inner = Message("jitter.who_of", {"rank": np.int64(3), "steps": 2})
    found = message_to_json(Message("jitter.who", {"counts": [inner], "steps": np.int32(4)}))
    assert json.loads(json.dumps(found)) == {
        "code": "jitter.who",
        "values": {
            "counts": [{"code": "jitter.who_of", "values": {"rank": 3, "steps": 2}}],
            "steps": 4,
        },
    }
    assert message_to_json("a name from a file") is None


def test_names_that_look_like_forms_are_shown_as_they_are():
    """A hostile name would be taken for a form, and end in a traceback."""
    nasty = "{steps:steps} {0} {x!r}"
    text = str(Message("jitter.who", {"counts": [nasty], "steps": 1}))
    assert nasty in text


def test_a_message_goes_to_another_process():
    """Results of workers could not be brought home."""
    one = Message("steps.all", {})
    assert pickle.loads(pickle.dumps(one)) == one


def test_an_unknown_code_is_an_error():
    """A mistyped code would show as an empty line."""
    with pytest.raises(KeyError):
        str(Message("no.such", {}))


def test_an_error_keeps_its_codes_and_values():
    """A program would have to take the largest value that is allowed out of a sentence."""
    advice = message("advice.at_most_of_stages", most=64, stages=8)
    found = error_to_json(ConfigError("from outside", where="--set", remedy=advice))
    assert found == {
        "error": "--set: from outside. Give at most 64 with 8 stages",
        "error_messages": {
            "what": None,
            "remedy": {"code": "advice.at_most_of_stages", "values": {"most": 64, "stages": 8}},
        },
    }


def test_a_value_that_json_has_not_is_a_text():
    """A date in a topology file would end the JSON of its error in a traceback."""
    said = message_to_json(message("refused.no_axis", value=date(2026, 1, 2)))
    assert said["values"] == {"value": "2026-01-02"}


@pytest.mark.parametrize(
    ("cell", "text", "said"),
    [
        (
            'axis.ring {"pairs": ["0-1", "1-2", "2-3", "3-0"]}',
            "its sends go one way round a ring: 0-1, 1-2, 2-3 and 1 more",
            {"code": "axis.ring", "values": {"pairs": ["0-1", "1-2", "2-3", "3-0"]}},
        ),
        ("chosen at the start", "chosen at the start", None),
        ("later.version", "later.version", None),
        (None, None, None),
        (float("nan"), None, None),
    ],
)
def test_a_cell_is_shown_as_its_sentence(cell, text, said):
    """A reader would see codes, or nothing of a run that an older version recorded."""
    assert cells_to_json({"why": cell}, "why") == {"why": text, "messages": {"why": said}}
