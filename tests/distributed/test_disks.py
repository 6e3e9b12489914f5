"""Runs whose disk is full, read-only, slow, broken or hangs: training must not notice.

The disks are real: a small tmpfs, and a file system whose server is a process of the test.
"""

import pytest
from tests.disks import Disk, missing, run_on
from tests.distributed import disk_job
from tests.distributed.forked_ranks import run_forked
from tests.texts import texts

from meshscope.probe.reader.run import read_run

pytestmark = pytest.mark.distributed

STEPS, BREAKS_AT = 60, 20
NETWORK = Disk(kind="fuse", delay_s=0.01)


@pytest.fixture(scope="module")
def losses(tmp_path_factory):
    """Return the losses of each rank without the probe."""
    folder = tmp_path_factory.mktemp("alone")
    return [lines(text) for text in run_forked(folder, disk_job.main, (STEPS, "none"), ranks=2)]


@pytest.fixture
def train(tmp_path):
    """Return a function that trains on a disk; it returns losses, output and the capture."""

    def start(disk, fault):
        if reason := missing(disk):
            pytest.skip(f"needs a disk of its own: {reason}")
        printed = run_on(
            disk,
            tmp_path,
            disk_job.main,
            (STEPS, fault, tmp_path / "disk" / "run"),
            ranks=2,
            environment={"XDG_RUNTIME_DIR": ""},
        )
        return [lines(text) for text in printed], "".join(printed), tmp_path / "kept" / "run"

    return start


def lines(printed):
    """Return the lines with a loss."""
    return [line for line in printed.splitlines() if "0x" in line]


def steps_of(capture, rank):
    """Return which steps of a rank a capture holds."""
    table = capture.tables["step"].to_pandas()
    return set(table.loc[table["rank"] == rank, "step"])


def test_a_slow_network_disk_costs_nothing(train, losses):
    """Fails when a run directory whose server takes its time loses records or changes a loss."""
    trained, _, run = train(NETWORK, "none")
    assert trained == losses
    capture = read_run(run)
    assert steps_of(capture, 0) == steps_of(capture, 1) == set(range(STEPS))
    assert not [limit for limit in texts(capture.limits) if "errors" in limit or "missing" in limit]


def test_a_disk_that_hangs_stops_nobody(train, losses):
    """Fails when any step waits for the disk: it answers again only when training is done."""
    trained, _, run = train(NETWORK, "hang")
    assert trained == losses
    capture = read_run(run)
    assert steps_of(capture, 0) == steps_of(capture, 1) == set(range(STEPS))
    assert not [limit for limit in texts(capture.limits) if "without a name" in limit]
    assert capture.tables["run"]["dp"].to_pylist() == [2], "the layout came while the disk hung"


@pytest.mark.parametrize(
    "error",
    ["EDQUOT", *(pytest.param(e, marks=pytest.mark.slow) for e in ("EROFS", "EIO", "ESTALE"))],
)
def test_a_disk_that_refuses_keeps_what_it_has(train, losses, error):
    """Fails when an error of the disk reaches training, or takes what was written before."""
    trained, _, run = train(NETWORK, error)
    assert trained == losses
    capture = read_run(run)
    assert steps_of(capture, 0) & steps_of(capture, 1) >= set(range(BREAKS_AT))
    assert any(
        limit.startswith("No close mark on ranks 0 and 1") for limit in texts(capture.limits)
    )
    assert any(
        "the ring file is a copy" in limit and "fuse.odd" in limit
        for limit in texts(capture.limits)
    )


def test_a_disk_that_fills_is_said(train, losses):
    """Fails when a disk that fills while the job runs ends it, or the capture hides its loss."""
    trained, _, run = train(Disk(kind="tmpfs", options="size=40m"), "fill")
    assert trained == losses
    capture = read_run(run)
    assert {rank for rank in (0, 1) if steps_of(capture, rank) == set(range(STEPS))} == {0, 1}
    said = " ".join(texts(capture.limits))
    assert (
        "not written: the disk" in said or "manifest_write_errors" in said or "close mark" in said
    )


@pytest.mark.parametrize(
    ("options", "why"), [("size=1m", "No space left"), ("ro", "Read-only file system")]
)
def test_no_room_at_the_start_is_no_capture(train, losses, options, why):
    """Fails when a job does not train because nothing can be recorded, or nobody is told why."""
    trained, printed, run = train(Disk(kind="tmpfs", options=options), "none")
    assert trained == losses
    assert printed.count("records nothing") == 2
    assert why in printed
    assert not list(run.rglob("ring.bin"))
