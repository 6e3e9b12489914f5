"""Trainers of other frameworks under ``meshscope run``, without a change in their code."""

from __future__ import annotations

import os
import subprocess
from collections import Counter
from pathlib import Path

import pytest
from tests.conftest import PROJECT
from tests.frameworks.cases import CASES, Case

from meshscope.analyze.load.load import load_trace
from meshscope.analyze.tables.trace import Trace
from meshscope.probe.schema.layout import MESH_AXES

pytestmark = [pytest.mark.frameworks, pytest.mark.slow, pytest.mark.distributed]

ENVIRONMENT = Path(os.environ.get("MESHSCOPE_FRAMEWORKS") or PROJECT / ".venv-frameworks")
OWN = Path(__file__).parent
SHARED = PROJECT.parent / "shared" / "trainers"
IN_CI = (
    "ddp",
    "fsdp2 with tensor parallelism",
    "pipelining 1f1b",
    "pipelining interleaved",
    "deepspeed zero-3",
    "deepspeed pipeline module",
    "hugging face ddp",
    "accelerate fsdp2",
    "lightning fsdp2",
    "megatron-core interleaved with its distributed optimizer and experts",
    "torchtitan fsdp2 with tensor parallelism",
    "torchtitan interleaved",
)
"""The cases with most parts of each framework."""
STEPS = 5
STEADY = range(2, STEPS - 1)
"""Steps after the set-up traffic and before the farewell."""


def job_environment(session: Path) -> dict[str, str]:
    """Return the environment of a job: extensions are built in the folder of the test session.

    In the home folder the lock of a job that was killed at it would hang all later ones, for ever. One
    job of a session runs at a time, so that a lock there is left over.
    """
    extensions = session / "torch_extensions"
    for lock in extensions.rglob("lock"):
        lock.unlink(missing_ok=True)
    return {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "DS_ACCELERATOR": "cpu",
        "TORCH_EXTENSIONS_DIR": str(extensions),
    }


def record(case: Case, runs: Path) -> Trace:
    """Run a trainer under the probe and return its capture."""
    if not (ENVIRONMENT / "bin" / "torchrun").exists():
        pytest.skip(f"needs the frameworks, which `make frameworks` installs into {ENVIRONMENT}")
    script = (OWN if case.own else SHARED) / case.script
    if not script.exists():
        pytest.skip("needs the shared trainers: the folder is absent")
    command = [
        *(ENVIRONMENT / "bin" / "meshscope", "run", "--runs", runs, "--run-id", "run", "--"),
        *(ENVIRONMENT / "bin" / "torchrun", "--standalone", "--nproc_per_node", case.ranks),
        *(script, *case.arguments, "--steps", STEPS),
    ]
    done = subprocess.run(
        [str(part) for part in command],
        env=job_environment(runs.parent),
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return load_trace(runs / "run")


def counts_of(trace: Trace, rank: int, step: int) -> dict[tuple[str, str], int]:
    """Return the operations of a rank in a step by axis and kind."""
    counts: Counter[tuple[str, str]] = Counter()
    for table, column in (("collective", "kind"), ("p2p", "direction")):
        rows = trace.frame(table)
        own = rows[(rows["rank"] == rank) & (rows["step"] == step)]
        counts.update(zip(own["axis"].astype(str), own[column].astype(str), strict=True))
    return dict(counts)


def passes_of(trace: Trace, rank: int, step: int) -> Counter[str]:
    """Return the passes of a rank in a step by kind; a loss belongs to the pass before it."""
    spans = trace.frame("span")
    own = spans[(spans["rank"] == rank) & (spans["step"] == step)]
    distinct = own[["kind", "chunk", "microbatch"]].drop_duplicates()
    return Counter(distinct["kind"].astype(str))


@pytest.mark.sampled(keep=IN_CI)
@pytest.mark.parametrize("name", CASES)
def test_a_trainer_is_recorded_as_it_is(name: str, tmp_path: Path) -> None:
    """Fails if an operation, a pass, the mesh or the schedule of a framework is missed."""
    case = CASES[name]
    trace = record(case, tmp_path)
    assert trace.ranks == tuple(range(case.ranks))
    layout = trace.layout
    assert layout is not None
    for rank in trace.ranks:
        found, expected = layout.coordinates(rank), case.layout.coordinates(rank)
        assert found == expected, f"rank {rank}"
    sizes = (*MESH_AXES, "ep", "vpp")
    assert {axis: getattr(layout, axis) for axis in sizes} == {
        axis: getattr(case.layout, axis) for axis in sizes
    }
    assert trace.run.get("schedule") == case.schedule
    steps = trace.frame("step").groupby("rank")["step"].apply(list)
    assert all(numbers == list(range(STEPS)) for numbers in steps)
    for rank in trace.ranks:
        is_last = layout.coordinates(rank)["pp"] == layout.pp - 1
        expected = Counter(case.counts) + Counter(case.last_stage if is_last else {})
        for step in STEADY:
            assert counts_of(trace, rank, step) == expected, f"rank {rank}, step {step}"
            passes = passes_of(trace, rank, step)
            assert passes["forward"] == passes["backward"] == case.passes
            assert passes["optimizer"] == 1


def test_the_sampled_cases_exist() -> None:
    """Fails when a case is renamed and CI stops to run it without a word."""
    assert set(IN_CI) <= set(CASES)


def test_a_killed_job_hangs_no_later_one(tmp_path: Path) -> None:
    """Fails when the lock of an extension, left by a job that was killed, stops all that build it after."""
    left = tmp_path / "torch_extensions" / "py311_cpu" / "deepspeed_shm_comm" / "lock"
    left.parent.mkdir(parents=True)
    left.touch()
    assert job_environment(tmp_path)["TORCH_EXTENSIONS_DIR"] == str(tmp_path / "torch_extensions")
    assert not left.exists()
