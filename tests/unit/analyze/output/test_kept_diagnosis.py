"""A diagnosis in files: it is the same afterwards, and what is none is refused."""

import copy
import json
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from meshscope.analyze.findings.diagnosis import diagnose
from meshscope.analyze.output.json import diagnosis_to_json
from meshscope.analyze.output.kept_diagnosis import NotKeptError, read_diagnosis, write_diagnosis
from meshscope.analyze.synthetic import SyntheticJob, generate, parse_fault
from meshscope.probe.schema.layout import ParallelLayout

FAULTS = ["slow_rank:rank=3,factor=1.5", "slow_link:axis=dp,factor=4,rank=0", "hang:rank=2"]


def diagnosed(fault):
    """Return the diagnosis of a job with one fault: slow, or hung in its last step."""
    steps = ",first_step=2" if fault.startswith("hang") else ""
    faults = (parse_fault(f"{fault}{steps}"),)
    layout = ParallelLayout(tp=1, pp=2, dp=2)
    job = SyntheticJob(layout=layout, steps=4, jitter_cv=0.02, faults=faults)
    return diagnose(generate(job)[0])


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Return a folder with a diagnosis, and its JSON value as it comes out of a file."""
    folder = tmp_path_factory.mktemp("kept")
    return folder, json.loads(json.dumps(write_diagnosis(diagnosed(FAULTS[0]), folder)))


@pytest.fixture
def kept(written, tmp_path):
    """Return the value; its tables are in ``tmp_path``."""
    folder, value = written
    for place in folder.iterdir():
        shutil.copy(place, tmp_path)
    return copy.deepcopy(value)


@pytest.mark.parametrize("fault", FAULTS)
def test_it_is_the_same_afterwards(fault, tmp_path):
    """Fails when a number, a sentence or a table of a diagnosis changes on the way."""
    before = diagnosed(fault)
    kept = json.dumps(write_diagnosis(before, tmp_path))
    after = read_diagnosis(json.loads(kept), tmp_path)
    one, other = (json.dumps(diagnosis_to_json(found), default=int) for found in (before, after))
    assert one == other
    assert [str(one.claim) for one in after.findings] == [str(one.claim) for one in before.findings]
    for name in ("ledger", "stragglers", "memory", "groups"):
        one, other = getattr(before, name), getattr(after, name)
        assert list(one) == list(other)
        assert one.dtypes.tolist() == other.dtypes.tolist()
        assert one.equals(other)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (["step_time_ns"], "long"),
        (["findings"], [{"kind": "none_such"}]),
        (["limits"], [{"code": "no.such_sentence", "values": {}}]),
        (["limits"], [{"code": "doubt", "values": 3}]),
        (["run"], []),
        (["ledger"], {"file": "../../secret.parquet", "order": [], "rows": 0, "others": {}}),
        (["ledger", "rows"], 10**12),
        (["ledger", "order"], ["rank"]),
        (["ledger", "file"], "missing.parquet"),
        (["groups", "others", "axis", "dtype"], "datetime64[ns]"),
    ],
)
def test_what_is_none_is_refused(kept, tmp_path, place, value):
    """Fails when a damaged or hostile file becomes a diagnosis that breaks a page."""
    inner = kept
    for name in place[:-1]:
        inner = inner[name]
    inner[place[-1]] = value
    with pytest.raises((NotKeptError, OSError)):
        read_diagnosis(kept, tmp_path)


def test_a_table_of_zeros_is_not_unpacked(kept, tmp_path):
    """Fails when a file of some kB can fill the memory of a server."""
    rows = 1 << 26
    zeros = pa.table({"rank": np.zeros(rows, np.int64)})
    pq.write_table(zeros, tmp_path / "big.parquet", use_dictionary=False, compression="zstd")
    assert (tmp_path / "big.parquet").stat().st_size < 1 << 20
    with pytest.raises(NotKeptError, match="too large"):
        read_diagnosis(kept | {"ledger": {**kept["ledger"], "file": "big.parquet"}}, tmp_path)


def test_a_torn_table_is_refused(kept, tmp_path):
    """Fails when half of a file is taken for a table."""
    place = tmp_path / kept["stragglers"]["file"]
    place.write_bytes(place.read_bytes()[:-9])
    with pytest.raises(NotKeptError):
        read_diagnosis(kept, tmp_path)
