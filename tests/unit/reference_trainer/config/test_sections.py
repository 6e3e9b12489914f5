"""Settings of checkpoints."""

from __future__ import annotations

import pytest

from meshscope.probe.schema.errors import ConfigError
from meshscope.reference_trainer.config.sections import CheckpointConfig


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"every": -1}, "checkpoint.every: -1 is out of range. Set it to at least 0"),
        ({"every": 2}, "checkpoint.every: 2 has no folder to save to. Set checkpoint.dir"),
        ({"keep": 0}, "checkpoint.keep: 0 is out of range. Set it to at least 1"),
        ({"resume": ""}, "checkpoint.resume: names nothing. Use auto, none or"),
    ],
)
def test_settings_that_say_nothing_are_refused(settings, message):
    """Fails if a wrong setting is found only in the middle of the training."""
    with pytest.raises(ConfigError) as caught:
        CheckpointConfig(**settings)
    assert str(caught.value).startswith(message)


def test_the_last_step_is_always_saved():
    """Fails if the end of the training is lost, or something is saved without a folder."""
    due = CheckpointConfig(dir="here", every=4).is_due
    assert [step for step in range(1, 11) if due(step, 10)] == [4, 8, 10]
    due = CheckpointConfig(dir="here").is_due
    assert [step for step in range(1, 11) if due(step, 10)] == [10]
    assert not CheckpointConfig().is_due(10, 10)
