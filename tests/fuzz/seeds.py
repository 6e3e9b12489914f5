"""Small valid inputs of every format, as bytes by file name: what fuzzing starts from.

Each has two ranks, so that a damaged file has a healthy neighbour.
"""

import io
import json
import os
import pickle
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from meshscope.probe.agent.host_directory import HostDirectory
from meshscope.probe.agent.settings import AgentSettings
from meshscope.probe.recording.record_heads import collective_head
from meshscope.probe.recording.recorder import Recorder, StorageSettings
from meshscope.probe.schema.rundir import create_run

Files = Mapping[str, bytes]

_GROUPS = [{"pg_name": "0", "pg_desc": "default_pg", "ranks": [0, 1]}]


def _event(cat: str, name: str, ts: float, dur: float, **args: object) -> dict[str, object]:
    return {
        "ph": "X", "cat": cat, "name": name, "pid": 0, "tid": 7, "ts": ts, "dur": dur, "args": args,
    }  # fmt: skip


def kineto_events(rank: int) -> list[dict[str, object]]:
    """Return the events of one rank: two steps of one operator, one kernel, one collective."""
    events: list[dict[str, object]] = []
    for step in range(2):
        at = 1_700_000_000_000_000.125 + 100 * step
        place = {"device": 0, "stream": 7}
        collective = {
            "Collective name": "allreduce", "In msg nelems": 8, "Out msg nelems": 8,
            "dtype": "Float", "Process Group Name": "0", "Seq": step,
        }  # fmt: skip
        events += [
            _event("user_annotation", f"ProfilerStep#{step}", at, 100),
            _event("cpu_op", "aten::mm", at + 1, 9, **{"External id": 2 * step + 1}),
            _event("cuda_runtime", "cudaLaunchKernel", at + 2, 1, correlation=2 * step + 1),
            _event("kernel", "gemm", at + 10, 20 + rank, correlation=2 * step + 1, **place),
            _event("kernel", "ncclDevKernel_AllReduce", at + 40, 30 - rank, **place, **collective),
        ]
    return events


def kineto() -> Files:
    """Return one Kineto file a rank."""
    return {
        f"rank{rank}.json": json.dumps(
            {
                "schemaVersion": 1,
                "distributedInfo": {"rank": rank, "world_size": 2, "pg_config": _GROUPS},
                "deviceProperties": [{"id": 0, "name": "A100"}],
                "traceEvents": kineto_events(rank),
            }
        ).encode()
        for rank in range(2)
    }


def merged() -> Files:
    """Return one Kineto file that a tool made of two."""
    events = [
        {**event, "args": {**event["args"], "rank": rank}}  # type: ignore[dict-item]
        for rank in range(2)
        for event in kineto_events(rank)
    ]
    return {"merged.json": json.dumps({"traceEvents": events}).encode()}


def chrome_pairs() -> Files:
    """Return one file a rank of begin and end events, as a bare list."""
    found = {}
    for rank in range(2):
        marks = []
        for step in range(3):
            for ph, at in (("B", 10 * step), ("E", 10 * step + 5 + rank)):
                marks.append(
                    {"ph": ph, "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": at}
                )
        found[f"rank{rank}.json"] = json.dumps(marks).encode()
    return found


def dump(rank: int) -> dict[str, object]:
    """Return a flight recorder dump: one complete all-reduce, one that rank 1 has not issued."""
    entries = [
        {
            "record_id": seq,
            "pg_id": 0,
            "process_group": ("0", "default_pg"),
            "collective_seq_id": seq,
            "p2p_seq_id": 0,
            "profiling_name": "nccl:all_reduce",
            "time_created_ns": 1_700_000_000_000_000_000 + 1000 * seq,
            "input_sizes": [[4, 8]],
            "input_dtypes": ["Float"],
            "output_sizes": [[4, 8]],
            "output_dtypes": ["Float"],
            "state": "completed" if seq == 1 else "scheduled",
            "time_discovered_completed_ns": 1_700_000_000_000_009_000 if seq == 1 else None,
            "retired": seq == 1,
            "is_p2p": False,
        }
        for seq in range(1, 3 - rank)
    ]
    return {
        "version": "2.9",
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}},
        "pg_status": {
            "0": {"last_enqueued_collective": 2 - rank, "last_completed_collective": 1}
        },
        "entries": entries,
    }  # fmt: skip


def flight_recorder_pickle() -> Files:
    """Return one pickled dump a rank."""
    return {f"_dump_{rank}": pickle.dumps(dump(rank), 2) for rank in range(2)}


def flight_recorder_json() -> Files:
    """Return one dump a rank as JSON."""
    return {f"_dump_{rank}.json": json.dumps(dump(rank)).encode() for rank in range(2)}


def nccl_inspector() -> Files:
    """Return one log a process, of three collectives."""
    return {
        f"host-pid{rank}.log": "".join(
            json.dumps(
                {
                    "header": {"id": "0x7f", "rank": rank, "n_ranks": 2},
                    "metadata": {
                        "dump_timestamp_us": 1_700_000_000_000_000 + 1000 * number,
                        "hostname": "a",
                        "pid": 100 + rank,
                    },
                    "coll_perf": {
                        "coll": "AllReduce",
                        "coll_sn": number,
                        "coll_msg_size_bytes": 4096,
                        "coll_exec_time_us": 120.5 + rank,
                        "coll_timing_source": "kernel_gpu",
                    },
                }
            )
            + "\n"
            for number in range(1, 4)
        ).encode()
        for rank in range(2)
    }


def pipeline_visualiser() -> Files:
    """Return one file a pipeline rank, of two iterations, and the config."""
    one = {
        "total": 10.0, "memory": 3.0, "fwd_start": [0.0, 1.0], "fwd_end": [1.0, 2.0],
        "bwd_start": [2.0, 4.0], "bwd_end": [4.0, 6.0],
    }  # fmt: skip
    stages = {f"pp_rank_{stage}.json": json.dumps({"3": one, "4": one}) for stage in range(2)}
    config = {"config.json": json.dumps({"pp_size": 2, "num_mbs": 2, "world_size": 2})}
    return {name: text.encode() for name, text in (stages | config).items()}


def ndtimeline_rows() -> dict[str, list[object]]:
    """Return the columns of two workers, one on each stage, in two steps."""
    rows: list[dict[str, object]] = []
    for step in range(2):
        for stage, optypes in enumerate(
            (("forward-compute", "forward-send"), ("forward-recv", "forward-compute"))
        ):
            rows += [
                {
                    "rank": stage, "dp_rank": 0, "stage": stage, "step": step, "optype": optype,
                    "start_ts": float(stage + place), "duration": 1.0, "seq_id": 0,
                    "mc": 0 if "compute" in optype else -1,
                    "mb_id": 0 if "compute" in optype else -1,
                }
                for place, optype in enumerate(optypes)
            ]  # fmt: skip
    return {name: [row[name] for row in rows] for name in rows[0]}


def ndtimeline() -> Files:
    """Return one job with its meta file."""
    sink = io.BytesIO()
    pq.write_table(pa.table(ndtimeline_rows()), sink)
    meta = b"dp_size: 1\npp_size: 2\ntp_size: 1\nvpp_size: 1\nworld_size: 2\n"
    return {"trace-J.parquet": sink.getvalue(), "meta-J.yaml": meta}


@cache
def capture() -> Files:
    """Return a run directory of ours.

    Each rank has two closed segments, a ring and a manifest, their host samples of a device.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = create_run(Path(folder), "run-1", {"world_size": 2})
        settings = StorageSettings(wake_s=3600.0, slot_count=64, free_floor_frac=0.0)
        for rank in range(2):
            recorder = Recorder(path, rank, settings=settings)
            group = recorder.register_group("0", [0, 1], "default_pg")
            for step in range(20):
                start_ns = 1_000_000 * (step + 1)
                recorder.record_microbatch(0, 96, 4_608)
                recorder.record_step(step, start_ns, 900_000)
                event = recorder.issue_collective(
                    collective_head(group, 0, 0), step, 4096, start_ns
                )
                recorder.complete(event, start_ns + 100_000, start_ns, start_ns + 50_000)
                if step == 9:
                    recorder.flush()
            recorder.close()
        _add_host(path)
        # A lock has no content, and no reader looks at it.
        return {
            str(file.relative_to(path)): file.read_bytes()
            for file in sorted(path.rglob("*"))
            if file.is_file() and file.suffix != ".lock"
        }


def _add_host(path: Path) -> None:
    bounds = replace(AgentSettings().bounds, free_floor_frac=0.0)
    host = HostDirectory(path, bounds)
    device = {"uuid": "GPU-a", "name": "H100", "index": 0, "mem_total_bytes": 1 << 36}
    host.state({"devices": [device], "ports": []})
    for at in range(5):
        sample = {"uuid": "GPU-a", "time_ns": 1_000_000 * at, "clock_hz": 1.9e9, "throttle_mask": 0}
        process = {"uuid": "GPU-a", "time_ns": 1_000_000 * at, "pid": os.getpid()}
        host.add({"device_sample": [sample], "device_process": [process]})
        host.flush()
    host.close()


SEEDS: Mapping[str, Callable[[], Files]] = {
    "kineto": kineto,
    "merged": merged,
    "chrome_pairs": chrome_pairs,
    "flight_recorder_pickle": flight_recorder_pickle,
    "flight_recorder_json": flight_recorder_json,
    "nccl_inspector": nccl_inspector,
    "pipeline_visualiser": pipeline_visualiser,
    "ndtimeline": ndtimeline,
    "capture": capture,
}
"""The formats by name."""


def write(folder: Path, files: Files) -> Path:
    """Write files below a folder; return the folder."""
    for name, content in files.items():
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
    return folder
