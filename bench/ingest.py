"""What reading a Kineto trace costs: CPU time and memory, each figure from a fresh process.

A training trace is replicated in time until the file has the wanted size; ids and
step numbers stay distinct. It is a real one where the shared folder of traces
stands beside the project, else a synthetic one. Where HolisticTraceAnalysis is
installed, it reads the smaller file too, and the ratio is printed.
"""

import gzip
import importlib.util
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SIZES_MB = (55, 250)
ROUNDS = 3
REAL = "shared/traces/hta/nccl_parser_config/nccl_data.json.gz"
_IDS = ("correlation", "External id")
_ID_STRIDE = 1_000_000
_STEP_STRIDE = 1_000

_MEASURE = """
import os, resource, sys
{imports}
before = sum(os.times()[:4])
{statement}
print(sum(os.times()[:4]) - before, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""
_IMPORT = {
    "imports": "from pathlib import Path; from meshscope.analyze.importers import import_trace",
    "statement": "import_trace(Path(sys.argv[1]))",
}
_HTA = {
    "imports": "from hta.trace_analysis import TraceAnalysis",
    "statement": "TraceAnalysis(trace_files={0: sys.argv[1]})",
}
_BASE = {"imports": _IMPORT["imports"], "statement": ""}


def main() -> None:
    """Print the figures."""
    header, events = source_trace()
    print(f"{'memory after the imports':28} {_median(_BASE, Path())[1]:6.0f} MB")
    with tempfile.TemporaryDirectory() as folder:
        for size_mb in SIZES_MB:
            path = Path(folder) / "rank0.json"
            count = write_replicated(path, header, events, size_mb * 1_000_000)
            ours = _report(f"{size_mb} MB of JSON", path, count)
            if size_mb == SIZES_MB[0]:
                _report_gzip(path, count)
                _report_hta(path, ours)


def source_trace() -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the header and the events of one capture of a few steps."""
    real = Path(__file__).resolve().parents[2] / REAL
    if real.exists():
        content = json.loads(gzip.decompress(real.read_bytes()))
        return content, content.pop("traceEvents")
    print("shared traces are absent: the trace is synthetic")
    return {"distributedInfo": {"rank": 0, "world_size": 1}}, list(_synthetic())


def _synthetic() -> Iterator[dict[str, Any]]:
    """Yield operators, launches, flows and kernels in the proportions of a training step."""
    place = {"pid": 1, "tid": 1}
    for n in range(8000):
        ts = 4458676526266.285 + 60.5 * n
        ids = {"External id": n + 1, "Record function id": 0, "Sequence number": n, "Ev Idx": n}
        called = {"External id": n + 1, "cbid": 211, "correlation": n + 1}
        ran = called | {"device": 0, "stream": 7, "grid": [108, 1, 1], "block": [128, 1, 1]}
        yield {
            "ph": "X",
            "cat": "cpu_op",
            "name": f"aten::op{n % 90}",
            **place,
            "ts": ts,
            "dur": 40.5,
            "args": ids,
        }
        yield {
            "ph": "X",
            "cat": "cpu_op",
            "name": "aten::empty",
            **place,
            "ts": ts + 1,
            "dur": 2.5,
            "args": ids,
        }
        yield {
            "ph": "X",
            "cat": "cuda_runtime",
            "name": "cudaLaunchKernel",
            **place,
            "ts": ts + 9,
            "dur": 5,
            "args": called,
        }
        yield {"ph": "s", "id": n, "cat": "ac2g", "name": "ac2g", **place, "ts": ts + 9}
        yield {
            "ph": "X",
            "cat": "kernel",
            "name": f"void kernel{n % 50}<float, 4>(float*)",
            **place,
            "ts": ts + 99,
            "dur": 55.25,
            "args": ran,
        }
    for step in range(4):
        window = {"ts": 4458676526266.285 + 121_000 * step, "dur": 121_000}
        yield {
            "ph": "X",
            "cat": "user_annotation",
            "name": f"ProfilerStep#{step}",
            **place,
            **window,
        }


def write_replicated(
    path: Path, header: dict[str, Any], events: list[dict[str, Any]], size: int
) -> int:
    """Write copies of the events one after the other in time; return how many events there are."""
    times = [event["ts"] for event in events if "ts" in event]
    span = max(times) - min(times) + 1000
    written = copies = 0
    with path.open("w") as stream:
        stream.write(json.dumps(header)[:-1] + ', "traceEvents": [')
        while written < size:
            text = ",\n".join(json.dumps(_moved(event, copies, span)) for event in events)
            written += stream.write((",\n" if copies else "") + text)
            copies += 1
        stream.write("]}")
    return copies * len(events)


def _moved(event: dict[str, Any], copy: int, span: float) -> dict[str, Any]:
    """Return an event of one copy: later, with ids and step numbers of its own."""
    moved = dict(event)
    if "ts" in moved:
        moved["ts"] = round(moved["ts"] + copy * span, 3)
    word, _, number = str(moved.get("name", "")).partition("#")
    if word == "ProfilerStep":
        moved["name"] = f"{word}#{int(number) + copy * _STEP_STRIDE}"
    args = moved.get("args", {})
    ids = {key: args[key] + copy * _ID_STRIDE for key in _IDS if args.get(key, 0) > 0}
    return moved | ({"args": args | ids} if ids else {})


def _report(label: str, path: Path, count: int, *, size_mb: float = 0.0) -> float:
    """Print the figures of one file and return its CPU seconds."""
    megabytes = size_mb or path.stat().st_size / 1e6
    cpu_s, peak_mb = _median(_IMPORT, path)
    print(
        f"{label:28} {cpu_s / megabytes:6.4f} CPU s/MB {count / cpu_s / 1e6:6.2f} M events/s "
        f"{peak_mb:6.0f} MB peak"
    )
    return cpu_s


def _report_gzip(path: Path, count: int) -> None:
    packed = path.with_suffix(".json.gz")
    packed.write_bytes(gzip.compress(path.read_bytes(), 6))
    _report("… compressed", packed, count, size_mb=path.stat().st_size / 1e6)
    packed.unlink()


def _report_hta(path: Path, ours_s: float) -> None:
    if importlib.util.find_spec("hta") is None:
        print("HolisticTraceAnalysis is not installed: no ratio")
        return
    theirs_s, peak_mb = _median(_HTA, path)
    megabytes = path.stat().st_size / 1e6
    print(
        f"{'… HolisticTraceAnalysis':28} {theirs_s / megabytes:6.4f} CPU s/MB "
        f"{theirs_s / ours_s:6.1f} times as long {peak_mb:6.0f} MB peak"
    )


def _median(what: dict[str, str], path: Path) -> tuple[float, float]:
    """Return CPU seconds and peak memory, MB, of one statement: the median of fresh processes."""
    command = [sys.executable, "-c", _MEASURE.format(**what), str(path)]
    runs = []
    for _ in range(ROUNDS):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(done.stderr)
        cpu_s, peak_mb = map(float, done.stdout.split()[-2:])
        runs.append((cpu_s, peak_mb))
    return sorted(runs)[ROUNDS // 2]


if __name__ == "__main__":
    main()
