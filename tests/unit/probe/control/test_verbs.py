"""The registry: what is known, what is refused."""

import pytest

from meshscope.probe.control.messages import Request
from meshscope.probe.control.verbs import (
    Choice,
    FieldError,
    Flag,
    Refusal,
    Verb,
    VerbRegistry,
    Whole,
    Word,
    checked_fields,
)
from meshscope.probe.schema.errors import ConfigError


def test_a_verb_gets_checked_values():
    """Fails when a verb runs with fields that were not checked or filled in."""
    registry = VerbRegistry()
    registry.add(Verb("arm", "Arm.", dict, {"steps": Whole(1, 9), "margin": Whole(0, 9, 4)}))
    assert registry.call(Request("arm", {"steps": 2})) == {"steps": 2, "margin": 4}
    with pytest.raises(Refusal, match="arm: steps must be from 1 to 9"):
        registry.call(Request("arm", {"steps": 10}))


def test_unknown_verbs_are_refused_by_name():
    """Fails when a client cannot see what it may ask for."""
    registry = VerbRegistry()
    registry.add(Verb("status", "Tell.", dict))
    with pytest.raises(Refusal, match="unknown verb 'exec'; this process knows status"):
        registry.call(Request("exec", {}))


def test_a_name_is_taken_once_and_can_be_given_back():
    """Fails when a verb replaces another one unnoticed, or stays after its part is gone."""
    registry = VerbRegistry()
    registry.add(Verb("status", "Tell.", dict))
    with pytest.raises(ConfigError, match="already"):
        registry.add(Verb("status", "Tell.", dict))
    registry.remove("status")
    registry.remove("status")
    assert registry.names() == ()


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
