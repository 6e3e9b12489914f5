"""Recorded traces with published or measured answers."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

from tests.truth.foreign.case import Case, Check
from tests.truth.foreign.pipelines import GAIN
from tests.truth.foreign.readers import (
    STAGE,
    cause,
    column,
    first_fault,
    never_says,
    no_slow_rank,
    says,
    step_ms,
)

TRACES = "recorded traces"
_GIB = 1 / 2**30
_MEMORY_GIB = (104.33, 95.57, 88.11, 80.33, 73.15, 65.85, 58.07, 52.20)


def _waits(ranks: tuple[float, ...], per_steps: int = 1) -> tuple[Check, ...]:
    return tuple(
        column("ranks", "wait_ns", rank, right, 0.1, 1e-6 * per_steps)
        for rank, right in enumerate(ranks)
    )


_KNOWN: dict[str, tuple[str, tuple[Check, ...]]] = {
    "published job": ("straggler_analysis/trace-ST.parquet", (
        first_fault("stage_imbalance stage 3"), no_slow_rank(), step_ms(2214.448, 0.01),
        # Its excess on the light stages, by the simulation of this suite.
        Check(f"{GAIN} stage 3", 13.2, lambda r: cause(r, STAGE, "removal_gain_frac", stage=3), 1.5))),
    "four ranks of ResNet": ("amd_hpctraining/split", (
        first_fault("straggler_rank rank 3"), *_waits((60.881, 35.953, 37.315, 0.0)))),
    "eight ranks of DLRM": ("param", (
        *_waits((5.58, 11.12, 3.28, 9.57, 6.37, 6.04, 3.34, 1.53)),
        column("ranks", "arrived_last", 7, 5, 0), column("ranks", "arrived_last", 5, 2, 0))),
    "Megatron PP8 of Primus": ("primus_pp/gpu8_layer64_gbs16/pp8", (
        first_fault("stage_imbalance stage 7"), step_ms(3272.0, 10.0), no_slow_rank(),
        says("idle 36.3 % on stage 0", r"36\.3 ?%"), says("idle 30.5 % on stage 7", r"30\.5 ?%"),
        *(Check(f"memory of stage {s}, GB", right, lambda r, s=s: r.data["memory"][s]["peak_bytes"] * _GIB, 0.02)
          for s, right in enumerate(_MEMORY_GIB)))),
    "hang of Megatron, 16 ranks": ("nvrx_fr_traces/lock_gil_2nd", (
        says("ranks 10 and 15", r"ranks 10 and 15|ranks 10, 15", first=True),
        Check("TP x PP x DP", "2 x 4 x 2", lambda r: " x ".join(str(r.data["run"][k]) for k in ("tp", "pp", "dp"))))),
    "one rank of B200": ("tracelens/b200/eager_trace.json.gz", (
        first_fault("launch_bound"),
        says("7 of 8 ranks missing", r"7 of 8 ranks|1 of 8 ranks"),
        Check("idle, %", 86.7, lambda r: 100 * sum(f["cost_frac"] for f in r.data["findings"]
              if f["kind"] in ("launch_bound", "host_stall", "data_stall")), 1.0))),
    "one rank of DDP": ("hta/nccl_parser_config/nccl_data.json.gz", (
        first_fault("launch_bound"),
        Check("compute, ms", 115.656, lambda r: _ms(r, "compute", 3), 0.5),
        Check("exposed communication, ms", 39.559, lambda r: _ms(r, "exposed", 3) - _ms(r, "exposed_mem", 3), 0.5))),
    "two ranks of 128": ("hta/trace_filter", (
        says("2 of 128", r"2 of 128|126 of 128"),
        Check("compute of both, ms", 482.283, lambda r: 2 * _ms(r, "compute", 2), 2.5))),
    "nanosecond stamps": ("hta/ns_resolution_trace", (
        Check("compute, ms", 468.173, lambda r: _ms(r, "compute", 5), 1.0),
        never_says("a number that is none", r"\bNaN\b"))),
    "rank of CPUs": ("hta/cpu_only", (
        says("299 of 300 are missing", "299 of 300|1 of 300"), no_slow_rank())),
    "memory timeline": ("hta/memory_analysis", (
        Check("peak, GiB", 2.87, lambda r: r.data["memory"][0]["peak_bytes"] * _GIB, 0.02),)),
    "header without ranks": ("hta/distributed_info_unavailable", (
        Check("ranks", 1.0, lambda r: float(r.data["run"]["captured_ranks"])), no_slow_rank())),
}  # fmt: skip


def _ms(reply, name: str, steps: int) -> float:
    rows = [b for b in reply.data["waterfall"] if b["class"].startswith(name)]
    return steps * sum(b["dur_ns"] for b in rows) / 1e6


def _written_twice(source: Path, folder: Path) -> None:
    """Write each trace of a folder with all events again, as tools that join traces do."""
    for path in sorted(source.glob("*.json.gz")):
        document = json.loads(gzip.decompress(path.read_bytes()))
        document["traceEvents"] *= 2
        (folder / path.name.removesuffix(".gz")).write_text(json.dumps(document))


def _of_repeated_events(folder: Path) -> list[Case]:
    source, checks = folder / _KNOWN["four ranks of ResNet"][0], _KNOWN["four ranks of ResNet"][1]
    if not source.exists():
        return []
    asked = ("diagnose", ".", "--format", "json")
    said = says("events are written twice", "more than once")
    making = (lambda place: _written_twice(source, place),)
    return [Case("four-ranks,-all-events-twice", TRACES, asked, (*checks, said), making)]


def traces(shared: Path) -> list[Case]:
    """Return a case for each trace that is there."""
    folder = shared / "traces"
    return [
        *_of_repeated_events(folder),
        *_of_known(folder),
    ]


def _of_known(folder: Path) -> list[Case]:
    return [
        Case(
            name.replace(" ", "-"),
            TRACES,
            ("diagnose", str(folder / path), "--format", "json"),
            checks,
        )
        for name, (path, checks) in _KNOWN.items()
        if (folder / path).exists()
    ]
