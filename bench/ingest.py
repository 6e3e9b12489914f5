"""What ingesting Kineto traces costs: CPU time and memory, each figure from a fresh process.

Beside each figure stands what it must be. Where HolisticTraceAnalysis is installed, it
reads the same file, and the ratio is printed; figures of one run can be compared,
those of different runs of a busy machine cannot.
"""

import gzip
import importlib.util
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
import os, resource, shutil, sys, time
from pathlib import Path
{imports}
if __name__ == "__main__":
    path, runs = (Path(name) for name in sys.argv[1:3])
    began, before = time.perf_counter(), sum(os.times()[:4])
    {statement}
    wall, cpu = time.perf_counter() - began, sum(os.times()[:4]) - before
    print(wall, cpu, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""
_INGEST_IMPORTS = "from meshscope.analyze.opening.ingest import Keeping, ingest"
_INGEST = "ingest(path, Keeping(runs_dir=runs, workers={workers}))"
_OPEN_IMPORTS = "from meshscope.analyze import load_trace"
_OPEN = "load_trace(path)"
_HTA_IMPORTS = "from hta.trace_analysis import TraceAnalysis"
_HTA = "TraceAnalysis(trace_files={0: str(path)})"
_MATCH_IMPORTS = """
import numpy as np, pyarrow as pa
from meshscope.analyze.communication.matching import match_collectives
from meshscope.analyze.capture.trace import Trace
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
        write_replicated(path, header, events, SMALL_MB * 1_000_000)
        _one_rank(path, folder)
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
        print(
            "HolisticTraceAnalysis is not installed, so there is no ratio to it: pip install '.[hta]'"
        )
        return
    theirs = _best(_HTA_IMPORTS, _HTA, path, runs)
    _print("HolisticTraceAnalysis, load", f"{theirs.cpu_s / size_mb:.4f} CPU s/MB of JSON", "")
    _print("… over our ingest", f"{theirs.cpu_s / small.cpu_s:.1f}", ">= 6")
    _print("… over our opening", f"{theirs.cpu_s / opened.cpu_s:.0f}", ">= 20")
    _print("… peak memory", f"{theirs.peak_mb:.0f} MB", "")


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
