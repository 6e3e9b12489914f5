"""Kineto files of any size: a trace of a few steps, replicated in time.

The trace is a real one where the shared folder of traces stands beside the project,
else a synthetic one.
"""

import gzip
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

REAL = "shared/traces/hta/nccl_parser_config/nccl_data.json.gz"
_IDS = ("correlation", "External id")
_ID_STRIDE = 1_000_000
_STEP_STRIDE = 1_000
_EVENTS_KEY = b', "traceEvents": ['
_MOST_HEADER = 1 << 20
_PLACE = {"pid": 1, "tid": 1}


def source_trace() -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the header and the events of one capture of a few steps."""
    real = Path(__file__).resolve().parents[3] / REAL
    if real.exists():
        content = json.loads(gzip.decompress(real.read_bytes()))
        return content, content.pop("traceEvents")
    print("shared traces are absent: the trace is synthetic")
    return {"distributedInfo": {"rank": 0, "world_size": 1}}, list(_synthetic())


def _synthetic() -> Iterator[dict[str, Any]]:
    """Yield operators, launches, flows and kernels in the proportions of a training step."""
    for n in range(8000):
        ts = 4458676526266.285 + 60.5 * n
        ids = {"External id": n + 1, "Record function id": 0, "Sequence number": n, "Ev Idx": n}
        called = {"External id": n + 1, "cbid": 211, "correlation": n + 1}
        ran = called | {"device": 0, "stream": 7, "grid": [108, 1, 1], "block": [128, 1, 1]}
        yield _complete("cpu_op", f"aten::op{n % 90}", ts, 40.5, args=ids)
        yield _complete("cpu_op", "aten::empty", ts + 1, 2.5, args=ids)
        yield _complete("cuda_runtime", "cudaLaunchKernel", ts + 9, 5, args=called)
        yield {"ph": "s", "id": n, "cat": "ac2g", "name": "ac2g", **_PLACE, "ts": ts + 9}
        kernel = f"void kernel{n % 50}<float, 4>(float*)"
        yield _complete("kernel", kernel, ts + 99, 55.25, args=ran)
    for step in range(4):
        ts = 4458676526266.285 + 121_000 * step
        yield _complete("user_annotation", f"ProfilerStep#{step}", ts, 121_000)


def _complete(category: str, name: str, ts: float, dur: float, **more: Any) -> dict[str, Any]:
    """Return a complete event; times in microseconds."""
    return {"ph": "X", "cat": category, "name": name, **_PLACE, "ts": ts, "dur": dur, **more}


def write_replicated(
    path: Path, header: dict[str, Any], events: list[dict[str, Any]], size: int
) -> int:
    """Write copies of the events one after the other in time; return how many events there are.

    Ids and step numbers of the copies stay distinct.
    """
    times = [event["ts"] for event in events if "ts" in event]
    span = max(times) - min(times) + 1000
    written = copies = 0
    with path.open("w") as stream:
        stream.write(json.dumps(header)[:-1] + _EVENTS_KEY.decode())
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


def write_ranks(
    folder: Path, header: dict[str, Any], events: list[dict[str, Any]], *, ranks: int, size: int
) -> None:
    """Write one file a rank, which differ in their headers only."""
    for rank in range(ranks):
        info = {"rank": rank, "world_size": ranks}
        own = header | {"distributedInfo": (header.get("distributedInfo") or {}) | info}
        path = folder / f"rank{rank}.json"
        if rank == 0:
            write_replicated(path, own, events, size)
            continue
        with (folder / "rank0.json").open("rb") as first, path.open("wb") as stream:
            place = first.read(_MOST_HEADER).index(_EVENTS_KEY)
            first.seek(place)
            stream.write(json.dumps(own)[:-1].encode())
            shutil.copyfileobj(first, stream)
