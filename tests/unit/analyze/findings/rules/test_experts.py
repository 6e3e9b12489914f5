"""A rank with popular experts is a finding about the router, not about the rank."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from meshscope.analyze.findings.diagnosis import diagnose
from meshscope.analyze.synthetic import Fault, FaultKind, SyntheticJob, generate
from meshscope.probe.schema.layout import ParallelLayout

POPULAR = 1


@pytest.fixture(scope="module")
def slow():
    """Return a job whose rank 1 takes 30 % longer, with even exchanges of tokens."""
    fault = Fault(kind=FaultKind.SLOW_RANK, rank=POPULAR, factor=1.3)
    job = SyntheticJob(layout=ParallelLayout(dp=4, ep=2), microbatches=4, steps=6, faults=(fault,))
    return generate(job)[0]


def with_load(trace, load):
    """Return the trace with every second exchange as uneven as the load of the popular rank."""
    rows = trace.tables["collective"]
    seq, rank = (rows[name].to_numpy() for name in ("seq", "rank"))
    size = rows["size_bytes"].to_numpy().astype(float)
    back = (np.array(rows["axis"].to_pylist()) == "ep") & (seq % 2 == 1)
    assert back.any()
    size = np.where(back & (rank == POPULAR), size * load, size)
    size = np.where(back & (rank == 0), size * (2 - load), size)
    at = rows.column_names.index("size_bytes")
    changed = rows.set_column(at, rows.schema.field(at), pa.array(size.astype(np.int64)))
    return replace(trace.with_tables({"collective": changed}), _frames={})


def blamed(trace):
    """Return the findings that blame the popular rank, by kind."""
    found = diagnose(trace).findings
    return {str(f.kind): f for f in found if f.where.get("rank") == POPULAR}


def test_a_rank_with_more_tokens_is_named_with_its_group(slow):
    """Fails if somebody would swap a machine because the router sends it more tokens."""
    found = blamed(with_load(slow, 1.5))
    assert "straggler_rank" not in found
    finding = found["expert_imbalance"]
    assert finding.where["axis"] == "ep"
    assert "1.50 x the mean load" in str(finding.claim)
    alone = blamed(slow)["straggler_rank"]
    # Spread over both members of the group the work is not gone.
    assert 0 < finding.removal_gain_frac < alone.removal_gain_frac


def test_a_slow_rank_with_its_share_of_tokens_stays_slow(slow):
    """Fails if a bad device hides behind a job that has experts."""
    assert set(blamed(slow)) == {"straggler_rank"}
    assert set(blamed(with_load(slow, 1.02))) == {"straggler_rank"}
