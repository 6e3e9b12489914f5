"""What ingesting Kineto traces costs: CPU time and memory, each figure from a fresh process.

Beside each figure stands what it must be. Where HolisticTraceAnalysis is installed, it
reads the same file, and the ratio is printed; figures of one run can be compared,
those of different runs of a busy machine cannot.
"""

import gzip
import importlib.util
import json
import resource
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from inputs.replicated import source_trace, write_replicated

SMALL_MB, LARGE_MB = 55, 500
ROUNDS = 5

_MEASURE = """
import resource, sys, time
from pathlib import Path
{imports}
def cpu_s():
    each = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in each)
if __name__ == "__main__":
    path, runs = (Path(name) for name in sys.argv[1:3])
    began, before = time.perf_counter(), cpu_s()
    {statement}
    wall, cpu = time.perf_counter() - began, cpu_s() - before
    print(wall, cpu, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""
_INGEST_IMPORTS = "from meshscope.analyze.load.ingest import Keeping, ingest"
_INGEST = "ingest(path, Keeping(runs_dir=runs, workers={workers}))"
_OPEN_IMPORTS = "from meshscope.analyze import load_trace"
_OPEN = "load_trace(path)"
_HTA_IMPORTS = "from hta.trace_analysis import TraceAnalysis"
_HTA = "TraceAnalysis(trace_files={0: str(path)})"
_WHOLE_HTA = (
    "import sys; from hta.trace_analysis import TraceAnalysis; TraceAnalysis({0: sys.argv[1]})"
)
_MATCH_IMPORTS = """
import numpy as np, pyarrow as pa
from meshscope.analyze.align.communication.matching import match_collectives
from meshscope.analyze.tables.trace import Trace
from meshscope.probe.schema.tables import COLLECTIVE, GROUP
RANKS, COUNT = 64, 2000
rank, seq = np.repeat(np.arange(RANKS), COUNT), np.tile(np.arange(COUNT), RANKS)
start = 1_000_000 * seq + np.random.default_rng(7).integers(0, 10_000, len(seq))
same = {"step": 0, "group_id": "g", "axis": "dp", "kind": "all_reduce", "size_bytes": 1 << 20}
same |= {"dtype": "float32", "source": "device"}
columns = {name: pa.array([value] * len(seq)) for name, value in same.items()}
columns |= {"rank": rank, "seq": seq, "issue_ns": start, "start_ns": start}
columns |= {"end_ns": 1_000_000 * seq + 500_000, "event_id": seq}
group = {"group_id": ["g"], "axis": ["dp"], "ranks": [list(range(RANKS))]}
tables = {"collective": COLLECTIVE.conform(pa.table(columns)), "group": GROUP.conform(pa.table(group))}
run = {"run_id": "bench", "world_size": RANKS}
trace = Trace(path=Path("."), run=run, layout=None, ranks=tuple(range(RANKS)), tables=tables)
"""
_MATCH = "assert len(match_collectives(trace).collectives) == COUNT"


class Cost(NamedTuple):
    """What one statement took."""

    wall_s: float
    cpu_s: float
    peak_mb: float


def main() -> None:
    """Print the figures."""
    header, events = source_trace()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = folder / "rank0.json"
        write_replicated(path, header, events, LARGE_MB * 1_000_000)
        large = _of_ingest(path, rounds=1)
        _print(f"peak memory, {_megabytes(path):.0f} MB", f"{large.peak_mb:.0f} MB", "<= 350 MB")
        starts = _starts(folder)
        _against_hta(path, starts, rounds=1)
        write_replicated(path, header, events, SMALL_MB * 1_000_000)
        _one_rank(path, folder)
        _against_hta(path, starts)
    match = _best(_MATCH_IMPORTS, _MATCH, Path(), Path())
    _print("match 64 ranks x 2,000 collectives", f"{match.cpu_s:.2f} CPU s", "<= 3 s")


def _one_rank(path: Path, folder: Path) -> None:
    """Print the figures of one file."""
    size_mb = _megabytes(path)
    small = _of_ingest(path)
    _print(f"peak memory, {size_mb:.0f} MB", f"{small.peak_mb:.0f} MB", "<= 350 MB")
    _print("cold ingest", f"{small.cpu_s / size_mb:.4f} CPU s/MB of JSON", "<= 0.010")
    packed = path.with_suffix(".json.gz")
    packed.write_bytes(gzip.compress(path.read_bytes(), 6))
    cpu_s = _of_ingest(packed).cpu_s
    packed.unlink()
    _print("… of the gzip file", f"{cpu_s / size_mb:.4f} CPU s/MB of JSON", "")
    runs = folder / "runs"
    _run(_INGEST_IMPORTS, _INGEST.format(workers=1), path, runs)
    (run,) = (one for one in runs.iterdir() if not one.name.startswith("."))
    opened = _best(_OPEN_IMPORTS, _OPEN, run, runs)
    shutil.rmtree(runs)
    _print("open the run again", f"{opened.cpu_s:.3f} CPU s", "<= 0.3 s")
    if importlib.util.find_spec("hta") is None:
        return
    theirs = _best(_HTA_IMPORTS, _HTA, path, runs)
    _print("HolisticTraceAnalysis, load", f"{theirs.cpu_s / size_mb:.4f} CPU s/MB of JSON", "")
    _print("… over our opening", f"{theirs.cpu_s / opened.cpu_s:.0f}", ">= 20")
    _print("… peak memory", f"{theirs.peak_mb:.0f} MB", "")


class _Starts(NamedTuple):
    """CPU seconds of a whole process that reads a trace of one kernel."""

    ours_s: float
    theirs_s: float | None
    """None where HolisticTraceAnalysis is not installed."""


def _starts(folder: Path) -> _Starts:
    """Measure what each command takes before it reads: its start, with next to nothing to read."""
    path = folder / "tiny.json"
    place = {"pid": 1, "tid": 1, "ph": "X"}
    step = {"cat": "user_annotation", "name": "ProfilerStep#1", "ts": 0, "dur": 1000}
    launch = {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 1, "dur": 5}
    kernel = {"cat": "kernel", "name": "gemm", "ts": 9, "dur": 100}
    ids = {"correlation": 1, "device": 0, "stream": 7}
    events = [place | step, place | launch | {"args": ids}, place | kernel | {"args": ids}]
    header = {"distributedInfo": {"rank": 0, "world_size": 1}}
    path.write_text(json.dumps(header | {"traceEvents": events}))
    ours, theirs = _whole_ingest(path, ROUNDS), _whole_hta(path, ROUNDS)
    _print("start: ingest of one kernel", f"{ours:.2f} CPU s", "<= 0.5")
    if theirs is None:
        print("HolisticTraceAnalysis is not installed: no ratio to it. pip install '.[hta]'")
    else:
        _print("… of HolisticTraceAnalysis", f"{theirs:.2f} CPU s", "")
    return _Starts(ours, theirs)


def _against_hta(path: Path, starts: _Starts, *, rounds: int = ROUNDS) -> None:
    """Print the ratio of whole processes, and of what they take beyond their starts."""
    if starts.theirs_s is None:
        return
    ours, theirs = _whole_ingest(path, rounds), _whole_hta(path, rounds) or 0.0
    net = (theirs - starts.theirs_s) / (ours - starts.ours_s)
    label = f"HTA's load over our ingest, {_megabytes(path):.0f} MB"
    _print(f"{label}, net", f"{net:.1f} (ours {ours - starts.ours_s:.2f} CPU s)", ">= 8")
    _print("… with both starts", f"{theirs / ours:.1f} (ours {ours:.2f} CPU s)", ">= 6")


def _whole_ingest(path: Path, rounds: int) -> float:
    """Return the CPU seconds of the command, at best, each time into an empty folder."""
    costs = []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as runs:
            command = ["-m", "meshscope", "ingest", str(path), "--runs", runs]
            costs.append(_whole(command))
    return min(costs)


def _whole_hta(path: Path, rounds: int) -> float | None:
    if importlib.util.find_spec("hta") is None:
        return None
    return min(_whole(["-c", _WHOLE_HTA, str(path)]) for _ in range(rounds))


def _whole(command: list[str]) -> float:
    """Return the CPU seconds of a process and its children, from its start to its end."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *command], check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _of_ingest(path: Path, *, rounds: int = ROUNDS) -> Cost:
    """Return what ingesting costs, each time into an empty folder."""
    with tempfile.TemporaryDirectory() as runs:
        costs = []
        for number in range(rounds):
            place = Path(runs) / str(number)
            costs.append(_run(_INGEST_IMPORTS, _INGEST.format(workers=1), path, place))
    return min(costs, key=lambda cost: cost.cpu_s)


def _best(imports: str, statement: str, path: Path, runs: Path) -> Cost:
    """Return the cost of the round that was disturbed least."""
    costs = [_run(imports, statement, path, runs) for _ in range(ROUNDS)]
    return min(costs, key=lambda cost: cost.cpu_s)


def _run(imports: str, statement: str, path: Path, runs: Path) -> Cost:
    """Measure one statement in a process of its own."""
    program = _MEASURE.format(imports=imports, statement=statement)
    with tempfile.NamedTemporaryFile("w", suffix=".py") as script:
        script.write(program)
        script.flush()
        done = subprocess.run(
            [sys.executable, script.name, str(path), str(runs)],
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        raise SystemExit(done.stderr)
    return Cost(*map(float, done.stdout.split()[-3:]))


def _megabytes(path: Path) -> float:
    return path.stat().st_size / 1e6


def _print(label: str, figure: str, must: str) -> None:
    print(f"{label:42} {figure:28} {f'must be {must}' if must else ''}".rstrip())


if __name__ == "__main__":
    main()
