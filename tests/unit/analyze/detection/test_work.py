"""Durations at average work, from tokens and squares of sequence lengths."""

import numpy as np
import pytest

from meshscope.analyze.detection import DetectionSettings, detect
from meshscope.analyze.detection.work import WorkModel
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
    import pandas as pd

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
    assert any("unequal work" in limit for limit in blind.limits)


@pytest.mark.parametrize(
    "wrong", [{"smallest": 0.0}, {"baseline_steps": 1}, {"baseline_steps": 30, "memory_steps": 10}]
)
def test_settings_out_of_range_are_refused(wrong):
    """A typing error would make a detection that finds everything or nothing."""
    with pytest.raises(ConfigError):
        DetectionSettings(**wrong)
