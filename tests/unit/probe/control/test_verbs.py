"""The registry: what is known, what is refused."""

import pytest

from meshscope.probe.control.fields import Whole
from meshscope.probe.control.messages import Request
from meshscope.probe.control.verbs import Refusal, Verb, VerbRegistry
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
