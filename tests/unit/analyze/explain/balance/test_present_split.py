"""Today's split: stated by the user, by a topology file, or by Megatron's arguments."""

from dataclasses import replace

import pytest
from tests.pipeline_dumps import write_dumps

from meshscope.analyze import load_trace
from meshscope.analyze.explain.balance import balance
from meshscope.analyze.findings.measure import measure
from meshscope.probe.schema.errors import ConfigError

HELD = (30, 26, 22, 20)


@pytest.fixture(scope="module")
def account(tmp_path_factory):
    """Return a run of four stages, whose heavy head hides how layers are split."""
    folder = tmp_path_factory.mktemp("run") / "now"
    write_dumps(folder, (4, 4, 5, 3), HELD)
    return measure(load_trace(folder))


def split_of(account, **facts):
    """Return the present split of a run about which more is known."""
    trace = replace(account.trace, run={**account.trace.run, **facts})
    return balance(replace(account, trace=trace)).current.layers


@pytest.mark.parametrize(
    ("facts", "split"),
    [
        ({"memory_settings": {"layers": [4, 4, 5, 3]}}, (4, 4, 5, 3)),
        ({"training_arguments": {"decoder_last_pipeline_num_layers": 1}}, (5, 5, 5, 1)),
        (
            {
                "training_arguments": {
                    "pipeline_model_parallel_size": 4,
                    "pipeline_model_parallel_layout": "Et*4|t*4|t*5|t*3L",
                }
            },
            (4, 4, 5, 3),
        ),
        ({"training_arguments": {"num_layers": 16}}, (4, 4, 4, 4)),
    ],
)
def test_what_the_capture_states_is_the_split(account, facts, split):
    """Fails when a recorded layout has to be typed again, or costs overrule it."""
    assert split_of(account, num_layers=16, **facts) == split


def test_a_recorded_split_that_does_not_fit_is_an_error(account):
    """Fails when a wrong layout of the capture is left out silently."""
    with pytest.raises(ConfigError, match="3 counts are given for 4 stages"):
        split_of(account, num_layers=16, memory_settings={"layers": [4, 4, 8]})


def test_a_stage_with_passes_has_layers(account):
    """Fails when a split that cannot be today's is priced, with memory that no device has."""
    with pytest.raises(ConfigError, match="stage 1 has passes"):
        balance(account, (0, 0, 0, 16))


def test_what_runs_fits(account):
    """Fails when a run that fills its devices is an error, or is proposed more than they hold."""
    memory = account.memory.assign(capacity_bytes=account.memory["peak_bytes"].max())
    found = balance(replace(account, memory=memory), (4, 4, 5, 3))
    assert found.current.fits
    assert all(one.fits for one in found.proposals)
