"""Rows of published memory as jobs: what a row does not say is stated once for all rows of a kind."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

B200 = "simumax_b200_pp1.json"
GOLDEN = "megatron_golden_a100.json.gz"
_LLAMA = {"vocab_size": 128256, "seq_len": 4096, "gated": True, "kv_heads": 8}
_DEEPSEEK = {
    "num_heads": 128,
    "seq_len": 4096,
    "gated": True,
    "dense_layers": [0],
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}
_MODELS: dict[str, dict[str, Any]] = {
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
_NOT_DECODERS = ("bert", "t5", "multimodal-llava", "hybrid")
_VOCABULARY = {"gpt3_15b": 256000, "mixtral": 32000, "": 50257}
_GPUS = {"gpt3_15b": 256, "mixtral_8x22b": 128, "mixtral": 64, "": 8}
"""By the beginning of a case's name; the resident bytes of a row tell the replicas."""
_LEAST_BYTES = 4e9
_MIB = 1 << 20
_WORLD = 8


@dataclass(frozen=True, slots=True)
class MemoryRow:
    """One measured job.

    Attributes:
        name: As in its table.
        family: Rows of one family share their model, or its kind.
        stated: The job in the form that ``meshscope plan`` reads: our tables or Megatron's arguments.
        peaks: Allocated bytes at the highest moment, by pipeline stage; -1 is the last one.
    """

    name: str
    family: str
    stated: dict[str, Any]
    peaks: dict[int, float]


def b200_rows(tables: Path) -> Iterator[MemoryRow]:
    """Give the rows of 8 B200 as ``[model]`` and ``[layout]``."""
    for row in json.loads((tables / B200).read_text("utf-8")):
        axes = {name: int(n) for name, n in re.findall(r"(tp|pp|cp|ep)(\d+)", row["parallel"])}
        mesh = {name: axes.get(name, 1) for name in ("tp", "pp", "cp", "ep")}
        replicas = _WORLD // (mesh["tp"] * mesh["pp"] * mesh["cp"])
        layout = {
            **mesh,
            "dp": replicas,
            "microbatches": row["mbc"],
            "microbatch_size": 1,
            "zero": 1,
            "gradient_dtype": "fp32",
            "sequence_parallel": mesh["tp"] > 1,
            "fused_cross_entropy": row["case"].endswith("cef"),
        }
        model = {"num_layers": row["layer_num"], **_MODELS[row["model"]]}
        peaks: dict[int, float] = {}
        for rank, peak in row["peak_memory_by_rank_mb"].items():
            stage = int(rank) // (_WORLD // mesh["pp"])
            peaks[stage] = max(peaks.get(stage, 0.0), peak["max_allocated_mb"] * _MIB)
        yield MemoryRow(row["case"], row["model"], {"model": model, "layout": layout}, peaks)


def golden_rows(tables: Path) -> Iterator[MemoryRow]:
    """Give the golden values above 4 GB as Megatron's arguments, one for each case."""
    seen: set[str] = set()
    for row in json.loads(gzip.decompress((tables / GOLDEN).read_bytes())):
        kind, name = row["case"].split("/")[:2]
        # A case of gb200 is a copy of the value of another mesh on another device.
        if (row["mem_max"] or 0) <= _LEAST_BYTES or kind in _NOT_DECODERS or "gb200" in row["case"]:
            continue
        if row["case"] in seen:
            continue
        seen.add(row["case"])
        args = {"vocab-size": str(_of_case(_VOCABULARY, name)), **row["args"]}
        args["world-size"] = str(_of_case(_GPUS, name))
        if name.startswith("gpt3_15b"):
            args["global-batch-size"] = "1152"
        family = "experts" if "num-experts" in row["args"] else "dense"
        yield MemoryRow(row["case"], family, args, {-1: float(row["mem_max"])})


def _of_case(table: dict[str, int], name: str) -> int:
    return next(value for key, value in table.items() if name.startswith(key))


def write_row(row: MemoryRow, path: Path) -> None:
    """Write the job of a row: our tables as TOML, Megatron's arguments as JSON."""
    if path.suffix == ".json":
        path.write_text(json.dumps(row.stated), "utf-8")
        return
    lines = []
    for table, values in row.stated.items():
        lines.append(f"[{table}]")
        lines += [f"{name} = {json.dumps(value)}" for name, value in values.items()]
    path.write_text("\n".join(lines) + "\n", "utf-8")
