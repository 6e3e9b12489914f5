"""Settings are validated where they are made, with the field in the message."""

import pytest

from meshscope.probe.schema.errors import ConfigError
from meshscope.probe.settings.config import SOURCES, ProbeConfig


def test_the_environment_overrides_the_defaults():
    """Fails when a MESHSCOPE_ variable is not read, or read into the wrong field."""
    config = ProbeConfig.from_environment(
        {"MESHSCOPE_SOURCES": "steps, gc", "MESHSCOPE_MEMORY_EVERY_STEPS": "5", "OTHER": "x"}
    )
    assert config == ProbeConfig(sources=("steps", "gc"), memory_every_steps=5)
    assert ProbeConfig.from_environment({}).sources == SOURCES


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"sources": ("steps", "telepathy")}, "telepathy"),
        ({"memory_every_steps": -1}, "memory_every_steps"),
        ({"max_source_errors": 0}, "max_source_errors"),
        ({"max_pending_works": -1}, "max_pending_works"),
    ],
)
def test_a_wrong_value_is_refused_by_name(values, named):
    """Fails when a setting that cannot work is taken, or the message hides which one it is."""
    with pytest.raises(ConfigError, match=named):
        ProbeConfig(**values)


def test_a_variable_that_is_no_number_is_refused_by_name():
    """Fails when a typing error in a variable shows as a traceback of int()."""
    with pytest.raises(ConfigError, match="MESHSCOPE_MIN_GC_NS: '1ms' is not a whole number"):
        ProbeConfig.from_environment({"MESHSCOPE_MIN_GC_NS": "1ms"})
