"""Names under which programs wait for data."""

import re

import pytest

from meshscope.analyze.read.note_names import DATA_NAMES


@pytest.mark.parametrize(
    "name",
    [
        "data_load", "dataloader", "load_data", "data loading", "get_batch", "next_batch",
        "get_next_batch", "train_dataloader_next", "batch-generator", "data_wait", "fetching_data",
        "data fetch", "dataset_wait", "get_batch_samples", "prefetch.next", "wait_for_batch",
    ],
)  # fmt: skip
def test_waits_for_data_are_known(name):
    """Fails when a host that waits for data is told as one that launches nothing."""
    assert re.fullmatch(DATA_NAMES, name, re.IGNORECASE)


@pytest.mark.parametrize(
    "name",
    ["batch", "data", "batch_norm", "micro_batch_3", "data_parallel", "get_weights", "next_token",
     "prepare_batch", "update_data", "load_model", "batch_forward", "sample_next_tokens"],
)  # fmt: skip
def test_other_work_on_batches_is_none(name):
    """Fails when the work on a batch counts as waiting for it."""
    assert not re.fullmatch(DATA_NAMES, name, re.IGNORECASE)
