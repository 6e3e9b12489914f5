"""What opening a run in HolisticTraceAnalysis costs with our tables and with its own parser.

CPU seconds, imports left out, the median of fresh processes: its parser on the trace file,
our bridge on the same file, and our bridge on the run that was ingested from it.
"""

import importlib.util
import subprocess
import sys
import tempfile
from pathlib import Path

from ingest import source_trace, write_replicated

SIZE_MB = 31
ROUNDS = 3
_IMPORTS = """
import os, resource, sys
from pathlib import Path
from hta.trace_analysis import TraceAnalysis
from meshscope.analyze import hta
from meshscope.analyze.load.ingest import Keeping, ingest
"""
_MEASURE = """
before = sum(os.times()[:4])
{statement}
print(sum(os.times()[:4]) - before, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""
_PARSE = "TraceAnalysis(trace_files={0: sys.argv[1]})"
_OPEN = "hta.open(sys.argv[1])"
_INGEST = "print(ingest(Path(sys.argv[1]), Keeping(runs_dir=Path(sys.argv[2]))).path)"


def main() -> None:
    """Print the figures."""
    if importlib.util.find_spec("hta") is None:
        print("HolisticTraceAnalysis is not installed: pip install 'meshscope[hta]'")
        return
    header, events = source_trace()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rank0.json"
        write_replicated(path, header, events, SIZE_MB * 1_000_000)
        run = _output(_IMPORTS + _INGEST, path, Path(folder) / "runs").strip()
        theirs_s = _report("HolisticTraceAnalysis, file", _PARSE, path)
        for label, where in (("ours, file", path), ("ours, ingested run", Path(run))):
            ours_s = _report(label, _OPEN, where)
            print(f"{'':28} {theirs_s / ours_s:6.1f} times faster")


def _report(label: str, statement: str, path: Path) -> float:
    """Print CPU seconds and peak memory of one statement; return the seconds."""
    program = _IMPORTS + _MEASURE.format(statement=statement)
    runs = [tuple(map(float, _output(program, path).split()[-2:])) for _ in range(ROUNDS)]
    cpu_s, peak_mb = sorted(runs)[ROUNDS // 2]
    print(f"{label:28} {cpu_s:6.3f} CPU s {peak_mb:6.0f} MB peak")
    return cpu_s


def _output(program: str, *arguments: Path) -> str:
    command = [sys.executable, "-c", program, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    return done.stdout


if __name__ == "__main__":
    main()
