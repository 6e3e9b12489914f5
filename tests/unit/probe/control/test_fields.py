"""What the fields of a request accept."""

import pytest

from meshscope.probe.control.fields import Choice, FieldError, Flag, Whole, Word, checked_fields

FIELDS = {
    "steps": Whole(1, 10),
    "dry": Flag(default=False),
    "level": Choice(("steps", "stages"), default="steps"),
    "name": Word(default="none"),
}


def test_defaults_fill_in():
    """Fails when a field that may be left out is not given its default."""
    values = checked_fields(FIELDS, {"steps": 3})
    assert values == {"steps": 3, "dry": False, "level": "steps", "name": "none"}


@pytest.mark.parametrize(
    ("given", "clause"),
    [
        ({}, "steps is missing"),
        ({"steps": 0}, "steps must be from 1 to 10"),
        ({"steps": True}, "steps must be a whole number"),
        ({"steps": 1.0}, "steps must be a whole number"),
        ({"steps": 1, "dry": 1}, "dry must be true or false"),
        ({"steps": 1, "level": "kernels"}, "level must be one of steps, stages"),
        ({"steps": 1, "level": ["steps"]}, "level must be one of"),
        ({"steps": 1, "name": "../../etc/passwd"}, "name must be up to 64 letters"),
        ({"steps": 1, "name": "a" * 65}, "name must be up to 64 letters"),
        ({"steps": 1, "name": "a\n"}, "name must be up to 64 letters"),
        ({"steps": 1, "path": "/tmp"}, "path is an unknown field"),
    ],
)
def test_what_does_not_fit_is_refused(given, clause):
    """Fails when a verb gets a value that it has not declared."""
    with pytest.raises(FieldError, match=clause):
        checked_fields(FIELDS, given)
