"""Findings whose cost comes from a cause by replay."""

import numpy as np
import pytest
from tests.synthetic import MS, Job, capture, uniform

from meshscope.analyze.findings.diagnosis import diagnose
from meshscope.analyze.formulas.flops import head_in_layers
from meshscope.probe.schema.layout import ParallelLayout

EVEN = uniform(10 * MS, 20 * MS)
DEEP = ParallelLayout(pp=4, dp=2)
SHAPE = {
    "num_layers": 16,
    "hidden_size": 1024,
    "seq_len": 1024,
    "vocab_size": 32_000,
    "parameters": 1,
}


def findings_of(work, **run):
    """Return the findings of a PP4 DP2 job by kind."""
    result = diagnose(capture(Job(layout=DEEP, steps=8), work, **run))
    return {str(finding.kind): finding for finding in result.findings}


def last_stage(factor):
    """Return work in which the last stage takes longer."""

    def work(kind, rank, step, microbatch):
        extra = factor if DEEP.coordinates(rank)["pp"] == 3 else 1.0
        return int(EVEN(kind, rank, step, microbatch) * extra)

    return work


def test_a_last_stage_as_heavy_as_its_head_is_called_so():
    """People would move layers where the vocabulary is what weighs."""
    layers = head_in_layers(SHAPE)
    assert layers == pytest.approx(2 * 32_000 / (8 * 1024 + 16 * 1024 + 4 * 1024))
    found = findings_of(last_stage(1 + layers / 4), **SHAPE)
    assert found["embedding_imbalance"].where == {"stage": 3, "steps": [1, 7]}
    worth = found["embedding_imbalance"].evidence[-1]
    assert (worth.code, worth.values["head"]) == ("stage.worth", layers)
    assert "stage_imbalance" not in found


@pytest.mark.parametrize("run", [{}, SHAPE | {"vocab_size": 1000}], ids=["unknown", "small head"])
def test_an_excess_that_the_head_does_not_explain_is_a_heavy_stage(run):
    """A bad split of the layers would be blamed on the vocabulary."""
    found = findings_of(last_stage(1.5), **run)
    assert found["stage_imbalance"].where == {"stage": 3, "steps": [1, 7]}
    assert "embedding_imbalance" not in found


def test_unequal_sequences_are_a_finding_without_a_rank():
    """Healthy ranks would be swapped because their data was longer."""
    length = np.clip(np.random.default_rng(3).normal(1.0, 0.35, (2, 8, 4)), 0.3, None)

    def work(kind, rank, step, microbatch):
        replica = DEEP.coordinates(rank)["dp"]
        return int(EVEN(kind, rank, step, microbatch) * length[replica, step, microbatch])

    found = findings_of(work)
    assert found["sequence_imbalance"].removal_gain_frac > 0.05
    assert found["sequence_imbalance"].where == {"steps": [1, 7]}
    assert "straggler_rank" not in found
