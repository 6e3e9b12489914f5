"""Durations at average work, from tokens and squares of sequence lengths."""

import numpy as np
import pandas as pd
import pytest
from tests.texts import texts

from meshscope.analyze.explain.slow_ranks import DetectionSettings, Evidence, detect
from meshscope.analyze.explain.slow_ranks.work import WorkModel
from meshscope.probe.schema.errors import ConfigError
from meshscope.probe.schema.layout import ParallelLayout


def lengths(shape):
    """Return tokens and sums of squared lengths."""
    draw = np.random.default_rng(2)
    tokens = draw.integers(1000, 5000, shape).astype(float)
    return np.stack([tokens, tokens * draw.uniform(50, 900, shape)], axis=-1)


def test_known_work_is_divided_out():
    """A job without pipeline stages could not tell long sequences from a slow rank."""
    features = lengths((1, 4, 1, 1, 32))
    step = 3.0 + 2e-3 * features[..., 0] + 1e-6 * features[..., 1]
    model = WorkModel.empty(1, 1, 2)
    model.add(step, features)
    even = model.without_work(step, features)
    assert np.ptp(even) < 1e-6 * even.mean()
    assert even.mean() == pytest.approx(step.mean())


def test_unknown_work_stays_as_it_is():
    """A microbatch without a token count would vanish."""
    features = lengths((1, 4, 1, 1, 32))
    step = 2e-3 * features[..., 0]
    model = WorkModel.empty(1, 1, 2)
    model.add(step, features)
    features[0, 0, 0, 0, 5] = np.nan
    assert model.without_work(step, features)[0, 0, 0, 0, 5] == step[0, 0, 0, 0, 5]


def test_tokens_let_a_slow_replica_be_found():
    """Data-parallel jobs with packed sequences would stay blind."""
    steps, ranks, items = 12, 4, 8
    features = lengths((steps, ranks, items))
    step, rank, item = np.indices((steps, ranks, items)).reshape(3, -1)
    time = 1e3 * features[..., 0] + features[..., 1]
    time *= 1 + 0.01 * np.random.default_rng(8).standard_normal(time.shape)
    time[:, 2] *= 1.05
    frame = pd.DataFrame(
        {
            "rank": rank,
            "step": step,
            "kind": "forward",
            "microbatch": item,
            "dur_ns": time.ravel(),
            "tokens": features[..., 0].ravel(),
            "sum_sq": features[..., 1].ravel(),
        }
    )
    layout = ParallelLayout(dp=4)
    assert [v.rank for v in detect(frame, layout).suspects] == [2]
    blind = detect(frame.drop(columns=["tokens", "sum_sq"]), layout)
    assert not blind.suspects
    assert blind.minimum_slowdown > 0.05
    assert any("unequal work" in limit for limit in texts(blind.limits))


def uneven(more=1.0, steps=12):
    """Return durations of four replicas, the third of which has more tokens in each microbatch."""
    features = lengths((steps, 4, 8))
    features[:, 2, :, 0] *= more
    step, rank, item = np.indices((steps, 4, 8)).reshape(3, -1)
    time = 1e3 * features[..., 0] + features[..., 1]
    time *= 1 + 0.01 * np.random.default_rng(8).standard_normal(time.shape)
    reported = {"tokens": features[..., 0].ravel(), "sum_sq": features[..., 1].ravel()}
    keys = {"rank": rank, "step": step, "kind": "forward", "microbatch": item}
    return pd.DataFrame({**keys, "dur_ns": time.ravel(), **reported})


def test_more_work_that_is_reported_is_no_slow_down():
    """Fails when a replica with longer sequences is suspected, or nothing says how much more it has."""
    frame = uneven(more=1.3)
    verdict = detect(frame, ParallelLayout(dp=4)).of(2)
    per_step = frame.groupby(["rank", "step"])["dur_ns"].sum().groupby(level="rank").mean()
    assert not verdict.is_slow
    assert verdict.evidence is Evidence.WORK
    assert abs(verdict.slowdown) < 0.01
    excess = per_step[2] - per_step[[0, 1, 3]].mean()
    assert verdict.unequal_work_ns == pytest.approx(excess, rel=0.15)


def test_equal_work_that_is_reported_leaves_the_peers_as_they_are():
    """Fails when microbatches that are all alike count as a measure of unequal work."""
    frame = uneven().assign(tokens=4096.0, sum_sq=4096.0**2)
    assert detect(frame, ParallelLayout(dp=4)).of(2).evidence is Evidence.PEERS


@pytest.mark.parametrize(
    "wrong", [{"smallest": 0.0}, {"baseline_steps": 1}, {"baseline_steps": 30, "memory_steps": 10}]
)
def test_settings_out_of_range_are_refused(wrong):
    """A typing error would make a detection that finds everything or nothing."""
    with pytest.raises(ConfigError):
        DetectionSettings(**wrong)
