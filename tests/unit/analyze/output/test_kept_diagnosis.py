"""A diagnosis in files: it is the same afterwards, and what is none is refused."""

import copy
import json
import shutil
from hashlib import sha256

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


ROWS = 1 << 22
BOMBS = {
    "few bytes for many rows": {"compression": "none"},
    "compressed": {"compression": "zstd", "use_dictionary": False},
}


@pytest.mark.parametrize("packed", BOMBS.values(), ids=BOMBS)
@pytest.mark.parametrize("claimed", [1, ROWS])
def test_a_table_of_zeros_is_not_unpacked(kept, tmp_path, packed, claimed):
    """Fails when a file of some kB can fill the memory of a server, whatever is claimed of it."""
    zeros = pa.table({name: np.zeros(ROWS, np.int64) for name in map(str, range(9))})
    pq.write_table(zeros, tmp_path / "big.parquet", **packed)
    content = (tmp_path / "big.parquet").read_bytes()
    assert len(content) < 1 << 20
    table = {"file": "big.parquet", "sha256": sha256(content).hexdigest(), "others": {}}
    table |= {"order": zeros.column_names, "rows": claimed}
    before = pa.total_allocated_bytes()
    peak = pa.default_memory_pool().max_memory()
    with pytest.raises(NotKeptError, match=r"too large|number of rows"):
        read_diagnosis(kept | {"ledger": table}, tmp_path)
    assert pa.default_memory_pool().max_memory() <= max(peak, before + (8 << 20))


@pytest.mark.parametrize(
    ("table", "why"),
    [
        (pa.table({"rank": [0, 1]}), "packed in another way"),
        (pa.table({"rank": ["0", "1"]}), "something else than numbers"),
        (pa.table({"rank": [[0], [1]]}), "something else than numbers"),
        (pa.table({"step": [0, 1]}), "other columns"),
    ],
    ids=["compressed", "texts", "lists", "other names"],
)
def test_what_the_footer_says_is_checked(kept, tmp_path, table, why):
    """Fails when a column that nobody writes is unpacked before it is refused."""
    pq.write_table(table, tmp_path / "odd.parquet", compression="zstd")
    found = sha256((tmp_path / "odd.parquet").read_bytes()).hexdigest()
    odd = {"file": "odd.parquet", "sha256": found, "order": ["rank"], "rows": 2, "others": {}}
    with pytest.raises(NotKeptError, match=why):
        read_diagnosis(kept | {"ledger": odd}, tmp_path)


def test_tables_of_two_writers_do_not_mix(kept, tmp_path):
    """Fails when a server shows the numbers of one analysis under the findings of another."""
    other = tmp_path / "other"
    other.mkdir()
    write_diagnosis(diagnosed("slow_rank:rank=1,factor=2"), other)
    file = kept["ledger"]["file"]
    shutil.copy(other / file, tmp_path / file)
    with pytest.raises(NotKeptError, match="of another analysis"):
        read_diagnosis(kept, tmp_path)


def test_nothing_that_lies_there_is_written_over(tmp_path):
    """Fails when a link that somebody planted has us write where they want."""
    (tmp_path / "outside").write_text("theirs")
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "table-0.parquet").symlink_to(tmp_path / "outside")
    with pytest.raises(FileExistsError):
        write_diagnosis(diagnosed(FAULTS[0]), tmp_path / "kept")
    assert (tmp_path / "outside").read_text() == "theirs"


def test_a_torn_table_is_refused(kept, tmp_path):
    """Fails when half of a file is taken for a table."""
    place = tmp_path / kept["stragglers"]["file"]
    place.write_bytes(place.read_bytes()[:-9])
    with pytest.raises(NotKeptError):
        read_diagnosis(kept, tmp_path)
