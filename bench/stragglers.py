"""What the published straggler metrics cost: CPU time and memory, each figure from a fresh process.

The jobs are made up: many replicas and few steps, few replicas and many steps, an
interleaved pipeline. The launch delays of all of them are taken apart too, which doubles the
work. The real job is added where the shared folder of traces stands beside the project.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
ROUNDS = 3
SHAPES = {
    "PP8 DP32, 32 microbatches": {"pp": 8, "dp": 32, "microbatches": 32, "steps": 2},
    "PP8 DP8, 16 microbatches": {"pp": 8, "dp": 8, "tp": 8, "microbatches": 16, "steps": 17},
    "PP4 DP2, 8 microbatches": {"pp": 4, "dp": 2, "microbatches": 8, "steps": 315},
    "PP4 DP4 VPP2, 16 microbatches": {"pp": 4, "dp": 4, "vpp": 2, "microbatches": 16, "steps": 35},
}
REAL = PROJECT.parent / "shared" / "traces" / "straggler_analysis" / "trace-ST.parquet"
_MEASURE = """
import resource, sys, time
from pathlib import Path
from meshscope.analyze.output.json.stragglers import published_to_json
from meshscope.analyze.explain.straggler_metrics import published_metrics
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
floor = peak()
begin, cpu = time.perf_counter(), time.process_time()
published_to_json(published_metrics(Path(sys.argv[1])))
print(time.process_time() - cpu, time.perf_counter() - begin, peak(), floor)
"""
# In a process of its own: a child's peak begins at what its parent held.
_WRITE = """
import json, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from tests.ndtimeline_jobs import JobShape, write_job
print(write_job(Path(sys.argv[2]), JobShape(**json.loads(sys.argv[3]))))
"""


def main() -> None:
    """Print the figures."""
    print(f"{'job':32} {'rows':>8} {'CPU s':>7} {'wall s':>7} {'peak MB':>8} {'of it imports':>14}")
    with tempfile.TemporaryDirectory() as folder:
        for name, shape in SHAPES.items():
            _report(name, Path(_run(_WRITE, str(PROJECT), folder, json.dumps(shape))))
    if REAL.exists():
        _report("the real job (ST)", REAL)


def _report(name: str, path: Path) -> None:
    rows = int(
        _run(
            "import sys, pyarrow.parquet as p; print(p.read_metadata(sys.argv[1]).num_rows)",
            str(path),
        )
    )
    runs = [[float(word) for word in _run(_MEASURE, str(path)).split()] for _ in range(ROUNDS)]
    cpu_s, wall_s, peak_mb, floor_mb = sorted(runs)[ROUNDS // 2]
    print(f"{name:32} {rows:8,} {cpu_s:7.2f} {wall_s:7.2f} {peak_mb:8.0f} {floor_mb:14.0f}")


def _run(program: str, *arguments: str) -> str:
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    return done.stdout.strip()


if __name__ == "__main__":
    main()
