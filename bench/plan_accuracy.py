"""How far the memory of `meshscope plan` is from what was measured: published rows, none fitted.

Two collections, in ../shared/tables or where MESHSCOPE_TABLES points (their README names sources):

* 8 B200, Llama 3 and DeepSeek models cut to a few layers: allocated, every rank;
* Megatron-LM's golden values on A100: peak since start of the last rank, above 4 GB.

* 8 AMD GPUs, 64 layers over PP8 (../shared/traces/primus_pp or MESHSCOPE_TRACES): peak by stage. Its model is
  not published, so only the form a + b k is tested: from two stages to the other six.

What a row does not say is stated here once for all rows of a kind: vocabulary by tokenizer, GPUs of
release cases. The moments were derived from the rows of one model (Llama 3 70B), what unfused
attention keeps from pairs of golden values with and without it. Rows of the other models then had
the errors printed here. Pipelines on B200 are in no row here: their error is not known.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import sys
import tempfile
from collections import defaultdict
from itertools import combinations
from pathlib import Path

from meshscope.analyze.formulas.planning import PlannedJob, PlanSettings, planned_job
from meshscope.analyze.formulas.planning.memory import chunks_in_flight, stage_memory
from meshscope.probe.schema.errors import ConfigError
from meshscope.probe.schema.layout import ParallelLayout
from meshscope.probe.schema.model import ModelDescription
from meshscope.probe.schema.terms import ScheduleKind

PROJECT = Path(__file__).resolve().parent.parent
TABLES = Path(os.environ.get("MESHSCOPE_TABLES") or PROJECT.parent / "shared" / "tables")
_LLAMA = {"vocab_size": 128256, "seq_len": 4096, "gated": True, "kv_heads": 8}
_DEEPSEEK = {
    "num_heads": 128,
    "seq_len": 4096,
    "gated": True,
    "dense_layers": (0,),
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}
MODELS: dict[str, dict[str, object]] = {
    "llama3-70b": {**_LLAMA, "hidden_size": 8192, "num_heads": 64, "ffn_size": 28672},
    "llama3-405b": {**_LLAMA, "hidden_size": 16384, "num_heads": 128, "ffn_size": 53248},
    "deepseekv2": {
        **_DEEPSEEK,
        "hidden_size": 5120,
        "vocab_size": 102400,
        "ffn_size": 12288,
        "experts": 160,
        "experts_per_token": 6,
        "expert_ffn_size": 1536,
        "shared_ffn_size": 3072,
    },
    "deepseekv3": {
        **_DEEPSEEK,
        "hidden_size": 7168,
        "vocab_size": 129280,
        "ffn_size": 18432,
        "experts": 256,
        "experts_per_token": 8,
        "expert_ffn_size": 2048,
        "shared_ffn_size": 2048,
    },
}
TRACES = Path(os.environ.get("MESHSCOPE_TRACES") or PROJECT.parent / "shared" / "traces")
_PIPELINE = "primus_pp/gpu8_layer64_gbs16/pp8"
_NOT_DECODERS = ("bert", "t5", "multimodal-llava", "hybrid")
_VOCABULARY = {"gpt3_15b": 256000, "mixtral": 32000, "": 50257}
_GPUS = {"gpt3_15b": 256, "mixtral_8x22b": 128, "mixtral": 64, "": 8}
"""By the beginning of a case's name; the resident bytes of a row tell the replicas."""
_LEAST = 4e9
_MIB = 1 << 20


def b200_errors() -> dict[str, list[float]]:
    """Return relative errors of allocated memory by model; one row for each rank."""
    found = defaultdict(list)
    for row in json.loads((TABLES / "simumax_b200_pp1.json").read_text()):
        axes = {
            name: int(size) for name, size in re.findall(r"(tp|pp|cp|ep)(\d+)", row["parallel"])
        }
        mesh = {name: axes.get(name, 1) for name in ("tp", "pp", "cp", "ep")}
        job = PlannedJob(
            model=ModelDescription(num_layers=row["layer_num"], **MODELS[row["model"]]),  # type: ignore[arg-type]
            layout=ParallelLayout(dp=8 // (mesh["tp"] * mesh["pp"] * mesh["cp"]), **mesh),
            microbatches=row["mbc"],
            gradient_bytes=4,
            sequence_parallel=mesh["tp"] > 1,
            fused_cross_entropy=row["case"].endswith("cef"),
        )
        planned = stage_memory(job)
        for rank, peak in row["peak_memory_by_rank_mb"].items():
            stage = int(rank) // (8 // mesh["pp"])
            measured = peak["max_allocated_mb"] * _MIB
            found[row["model"]].append(planned[stage].allocated_bytes / measured - 1)
    return found


def golden_errors() -> dict[str, list[float]]:
    """Return relative errors of the last rank by dense or experts, one for each case."""
    found = defaultdict(list)
    seen: dict[str, dict[str, object]] = {}
    rows = json.loads(gzip.decompress((TABLES / "megatron_golden_a100.json.gz").read_bytes()))
    for row in rows:
        family = row["case"].split("/")[0]
        if (row["mem_max"] or 0) > _LEAST and family not in _NOT_DECODERS:
            seen.setdefault(row["case"], row)
    for case, row in seen.items():
        if "gb200" in case:  # A copy of the value of another mesh on another device.
            continue
        error = _golden_error(case.split("/")[1], row)
        if error is not None:
            found["experts" if "num-experts" in row["args"] else "dense"].append(error)  # type: ignore[operator]
    return found


def pipeline_errors() -> dict[str, list[float]]:
    """Return errors of stages predicted from two others by bytes of a microbatch in flight.

    Two stages between the ends give states and activations of a stage; the ends hold embedding and
    head beside them, which nothing tells here.
    """
    folder = TRACES / _PIPELINE
    if not folder.is_dir():
        return {}
    peaks = []
    for stage in range(8):
        steps = json.loads((folder / f"pp_rank_{stage}.json").read_text())
        peaks.append(max(one["memory"] for name, one in steps.items() if int(name) > 2))
    flight = chunks_in_flight(ScheduleKind.ONE_F_ONE_B, 8, 16, 1)
    found: dict[str, list[float]] = {"between the ends": [], "ends": []}
    for first, second in combinations(range(1, 7), 2):
        slope = (peaks[first] - peaks[second]) / (flight[first] - flight[second])
        for stage in set(range(8)) - {first, second}:
            predicted = peaks[first] + slope * (flight[stage] - flight[first])
            name = "ends" if stage in (0, 7) else "between the ends"
            found[name].append(predicted / peaks[stage] - 1)
    return found


def _golden_error(name: str, row: dict[str, object]) -> float | None:
    args: dict[str, str] = dict(row["args"])  # type: ignore[call-overload]
    args.setdefault("vocab-size", str(_of_case(_VOCABULARY, name)))
    args["world-size"] = str(_of_case(_GPUS, name))
    if name.startswith("gpt3_15b"):
        args["global-batch-size"] = "1152"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "args.json"
        path.write_text(json.dumps(args))
        try:
            job, _ = planned_job(path, PlanSettings())
        except ConfigError as error:
            print(f"  left out: {name}: {error.what}")
            return None
    planned = stage_memory(job)[-1].allocated_bytes
    return planned / float(str(row["mem_max"])) - 1


def _of_case(table: dict[str, int], name: str) -> int:
    return next(value for key, value in table.items() if name.startswith(key))


def show(title: str, groups: dict[str, list[float]]) -> None:
    """Print mean and largest absolute error, and the mean with its sign, by group."""
    for name, errors in groups.items():
        sizes = [abs(one) for one in errors]
        print(
            f"{title}, {name}: {len(errors)} values, mean error {sum(sizes) / len(sizes):.2%}, "
            f"largest {max(sizes):.2%}, mean with sign {sum(errors) / len(errors):+.2%}"
        )


def main() -> int:
    """Print the errors; nothing to print is no failure."""
    if not TABLES.is_dir():
        print(f"no tables in {TABLES}: MESHSCOPE_TABLES names another folder")
        return 0
    show("8 B200, allocated", b200_errors())
    show("Megatron golden values on A100 above 4 GB", golden_errors())
    show("PP8 on 8 AMD GPUs, from two stages to the others", pipeline_errors())
    return 0


if __name__ == "__main__":
    sys.exit(main())
