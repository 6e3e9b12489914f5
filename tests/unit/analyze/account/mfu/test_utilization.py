"""MFU with its ingredients, and without each of them."""

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
