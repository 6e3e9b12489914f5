"""Balance of a recorded pipeline: gains that are known, and memory under a cap."""

import pytest
from tests.pipeline_dumps import write_dumps
from tests.texts import texts

from meshscope.analyze import load_trace
from meshscope.analyze.explain.balance import balance
from meshscope.analyze.findings.measure import measure
from meshscope.probe.schema.errors import ConfigError

GIB = 1 << 30
NOW = (4, 4, 4, 4)
HELD = (30, 26, 22, 20)


@pytest.fixture(scope="module")
def account(tmp_path_factory):
    """Return a run of four stages of four layers with a heavy head, measured."""
    folder = tmp_path_factory.mktemp("run") / "now"
    write_dumps(folder, NOW, HELD)
    return measure(load_trace(folder))


def test_the_predicted_gain_is_that_of_the_run_after(account, tmp_path):
    """Fails when a split is priced at another step time than it has."""
    then = (4, 4, 5, 3)
    after = write_dumps(tmp_path / "then", then, HELD)
    best = balance(account, NOW, then).proposals[0]
    assert best.step_time_ns == pytest.approx(after * 1e6, rel=0.01)
    assert (
        best.gain_low_frac <= 1 - after * 1e6 / account.windows.step_time_ns <= best.gain_high_frac
    )


def test_few_stages_bound_the_memory(account):
    """Fails when the cap of a short pipeline is ignored, or what it holds now is unknown."""
    found = balance(account, NOW)
    assert found.current.memory_by_stage_bytes == pytest.approx([one * GIB for one in HELD])
    assert any("upper bound" in limit for limit in texts(found.limits))
    (tried,) = balance(account, NOW, (8, 4, 3, 1), 31 * GIB).proposals
    assert tried.fits is False
    assert tried.memory_by_stage_bytes[0] == pytest.approx(60 * GIB)
    # A stage that loses layers holds no more than now, and maybe as much.
    assert tried.memory_by_stage_bytes[3] == pytest.approx(20 * GIB)
    (fits,) = balance(account, NOW, (4, 4, 5, 3), 31 * GIB).proposals
    assert fits.fits


def test_a_cap_below_every_split_says_the_least(account):
    """Fails when a split is proposed that cannot be held."""
    with pytest.raises(
        ConfigError,
        match=r"no split fits under 10\.74 GB; the least that one needs is [0-9.]+ GB\. ",
    ):
        balance(account, NOW, None, 10 * GIB)
