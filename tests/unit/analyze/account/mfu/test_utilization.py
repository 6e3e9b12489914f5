"""MFU with its ingredients, and without each of them."""

import json

import pytest
from tests.tables import trace_of

from meshscope.analyze.account.mfu.utilization import utilization

RUN = {
    "num_layers": 2,
    "hidden_size": 8,
    "seq_len": 16,
    "vocab_size": 10,
    "parameters": 1000,
    "tokens_per_step": 50,
    "world_size": 4,
    "peak_flops": 1e6,
    "peak_source": "measured",
}
PER_TOKEN = 6 * 920 + 12 * 2 * 8 * 16


def of(**changes):
    """Return the utilization of a step of half a second."""
    return utilization(trace_of(run={**RUN, **changes}), 0.5e9)


def test_mfu_is_model_flops_over_what_all_devices_could_do():
    """The one figure at the top of every report would be wrong."""
    use = of()
    assert use.mfu == pytest.approx(PER_TOKEN * 50 / (4 * 1e6 * 0.5))
    assert use.tokens_per_s == 100.0
    assert (use.peak_source, use.flops_convention) == ("measured", "nonembedding")
    assert str(use.unknown_because) == ""


@pytest.mark.parametrize(
    ("missing", "word"),
    [
        ({"hidden_size": None}, "shape"),
        ({"tokens_per_step": None}, "tokens"),
        ({"peak_flops": None}, "peak"),
        ({"peak_flops": 0.0}, "peak"),
    ],
)
def test_an_unknown_ingredient_makes_mfu_unknown_and_names_itself(missing, word):
    """A guess would stand in for a figure that the capture does not hold."""
    use = of(**missing)
    assert use.mfu is None
    assert word in str(use.unknown_because)


def test_the_data_sheet_stands_in_for_a_peak_that_nobody_stated():
    """A known device would have no MFU."""
    use = of(peak_flops=None, device_name="NVIDIA A100-SXM4-80GB")
    assert use.peak_flops == 312e12
    assert "data sheet" in use.peak_source


COUNTED = {
    "num_layers": 2,
    "hidden_size": 8,
    "num_heads": 2,
    "ffn_size": 32,
    "vocab_size": 10,
    "seq_len": 16,
    "counted": True,
}


def test_a_model_that_was_counted_says_so():
    """Fails when a model that the probe counted from modules passes for one that was stated."""
    use = of(model=json.dumps(COUNTED))
    assert use.mfu is not None
    assert any("2 layers of width 8, 2 heads" in str(note) for note in use.notes)


def test_a_step_without_tokens_counts_for_each_replica():
    """Fails when a model of images has no MFU although what its steps multiply was seen."""
    ran = {"ran_products": 100.0, "ran_attention": 20.0, "per_step": True, "complete": True}
    use = of(model=json.dumps(ran), tokens_per_step=None, world_size=1)
    assert use.flops_per_step == 6 * 120.0
    assert use.mfu == pytest.approx(6 * 120.0 / (1e6 * 0.5))
    assert use.tokens_per_s is None
    of_four = of(model=json.dumps(ran), tokens_per_step=None)
    assert "the mesh" in str(of_four.unknown_because)


@pytest.mark.parametrize("axis", ["tp", "pp", "ep"])
def test_a_part_of_a_model_is_not_counted_for_the_whole(axis):
    """Fails when a rank of tensor or pipeline parallelism counts its shard, and MFU is too low."""
    use = of(model=json.dumps(COUNTED), **{axis: 2})
    assert use.mfu is None
    assert f"ranks hold parts of it ({axis})" in str(use.unknown_because)


def test_one_rank_without_groups_is_its_own_mesh():
    """Fails when the tokens of a job of one process, which has no process group, are not used."""
    steps = [{"rank": 0, "step": 1, "start_ns": 0, "dur_ns": 1, "tokens": 64}]
    run = {**RUN, "world_size": 1, "tokens_per_step": None}
    use = utilization(trace_of(run=run, step=steps, layout=None), 0.5e9)
    assert use.tokens_per_s == 128.0


@pytest.mark.parametrize("known", [{}, dict.fromkeys(("hidden_size", "parameters"))])
def test_stated_flops_of_a_token_are_what_counts(known):
    """A model with a vision tower or without attention could have no MFU at all."""
    use = of(flops_per_token=5000.0, **known)
    assert use.mfu == use.mfu_by_convention["stated"] == pytest.approx(5000 * 50 / (4 * 1e6 * 0.5))
    assert use.flops_convention == "stated"
    assert (use.mfu_by_convention["nonembedding"] is None) == bool(known)
    without = of(flops_per_token=5000.0, tokens_per_step=None)
    assert without.mfu is None
    assert "tokens" in str(without.unknown_because)
