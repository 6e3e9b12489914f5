"""Small jobs that run here under ``meshscope run``, on gloo: several processes for seconds each."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

from tests.truth.foreign.case import Case, Check, Reply
from tests.truth.foreign.readers import cause, cost, first_fault, no_slow_rank, says

LIVE = "live jobs"
_RUN = (sys.executable, "-m", "meshscope", "run", "--run-id", "live", "--")
_TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node")
_ASKED = ("diagnose", "runs/live", "--format", "json")


def _blames(rank: int) -> Check:
    """Expect this rank, and no other one, in the place of the first finding."""

    def read(reply: Reply) -> str:
        where = reply.data["findings"][0]["where"]
        ranks = [where["rank"]] if "rank" in where else where["ranks"]
        return f"rank {', '.join(map(str, ranks))}"

    return Check("who is blamed", f"rank {rank}", read)


def _together(reply: Reply) -> float | None:
    """Return what collecting in the same steps returns, per cent of what no collection would."""
    reported = [f["removal_gain_frac"] for f in reply.data["findings"] if f["kind"] == "gc_pause"]
    without = cause(reply, {"gc_pause"}, "removal_gain_frac")
    return 1e4 * reported[0] / without if reported and without else None


_LIVE: dict[str, tuple[str, int, dict[str, str], tuple[Check, ...]]] = {
    "live-alternate": ("alt_fwd.py", 4, {}, (
        no_slow_rank(), first_fault("jitter"), cost("jitter, %", 33.0, 6.0, "jitter"))),
    "live-size": ("hang.py", 4, {"MODE": "size", "BAD": "2"}, (
        _blames(2), says("8000 B for 4000 B", r"8,?000|8\.0 kB|7\.8 KiB", first=True),
        says("in all_reduce 30", r"\b30\b", first=True))),
    "live-type": ("hang.py", 4, {"MODE": "type", "BAD": "2"}, (
        _blames(2), says("a broadcast", "broadcast", first=True))),
    "live-left-out": ("hang.py", 4, {"MODE": "skipgo", "BAD": "2"}, (
        _blames(2), says("one operation left out", r"left out|skipped|one (fewer|less)|missing|without", first=True))),
    "live-ended": ("hang.py", 4, {"MODE": "end", "BAD": "2"}, (
        _blames(2), says("ended in order", r"ended|exit|status 0|left", first=True),
        says("the remedy", r"\bjoin\b|sampler", first=True))),
    "live-collections": ("gcjob.py", 4, {"MODE": "stagger", "HEAP": "500000"}, (
        first_fault("gc_pause"), no_slow_rank(),
        says("what collecting together returns", r"same step"),
        # One collection of four is left: all ranks have theirs in the same steps.
        Check("of it, %", 75.0, _together, 5.0))),
}  # fmt: skip


def lives(shared: Path) -> list[Case]:
    """Return the jobs whose script is there, and the FLOPs of known models."""
    folder = shared / "cases"
    cases = []
    for name, (script, ranks, variables, checks) in _LIVE.items():
        if (folder / script).is_file():
            launch = (*_RUN, *_TORCHRUN, str(ranks), str(folder / script))
            cases.append(Case(name, LIVE, _ASKED, checks, (launch,), variables))
    if (folder / "mfu_job.py").is_file() and (folder / "flops_ref.py").is_file():
        cases += _flops(folder)
    return cases


FLOPS = "FLOPs of known models"
_GPT2 = {
    "num_layers": 12, "hidden_size": 768, "ffn_size": 3072, "num_heads": 12, "seq_len": 1024,
    "vocab_size": 50257, "parameters": 124_439_808,
}  # fmt: skip


_EXPERTS = {
    "Mixtral 8x7B top2": {
        "kv_heads": 8, "gated": True, "experts": 8, "experts_per_token": 2,
        "expert_ffn_size": 14336,
    },
    "Qwen3 30B-A3B top8": {
        "kv_heads": 4, "head_dim": 128, "gated": True, "experts": 128, "experts_per_token": 8,
        "expert_ffn_size": 768, "qk_norm": True,
    },
}  # fmt: skip
"""What else the configurations of models with experts state; parameters alone do not tell their FLOPs."""


def _flops(folder: Path) -> list[Case]:
    """Return a case for each model: one live run whose manifest states the model instead."""
    launch = (*_RUN, *_TORCHRUN, "2", str(folder / "mfu_job.py"))
    variables = {"SHAPE": json.dumps(_GPT2), "TOKENS": "1000000"}
    run = Path("..", "flops-run", "runs", "live")
    # The first case makes the run that all others copy.
    cases = [Case("flops-run", FLOPS, _ASKED, (_ratio(_right(_GPT2)),), (launch,), variables)]
    for model in _models(folder):
        shape = {
            "num_layers": model["L"], "hidden_size": model["h"], "ffn_size": model["ffn"],
            "num_heads": model["heads"], "seq_len": model["T"], "vocab_size": model["V"],
            "parameters": model["N"],
        }  # fmt: skip
        shape |= _EXPERTS.get(model["name"], {})
        name = "flops-" + model["name"].lower().replace(" ", "-")
        making = (lambda place, shape=shape: _restate(place / run, place / "runs" / "live", shape),)
        cases.append(Case(name, FLOPS, _ASKED, (_ratio(model["right"]),), making))
    return cases


def _ratio(right_per_token: float) -> Check:
    def read(reply: Reply) -> float:
        return 100 * reply.data["utilization"]["flops_per_step"] / 1e6 / right_per_token

    return Check("FLOPs a token, % of counted products", 100.0, read, 2.0)


def _right(shape: dict[str, int]) -> float:
    """Return the FLOPs a token of a plain transformer: products of layers, head and attention."""
    layers, hidden = shape["num_layers"], shape["hidden_size"]
    products = layers * (4 * hidden**2 + 2 * hidden * shape["ffn_size"])
    products += shape["vocab_size"] * hidden
    return 6 * products + 12 * layers * hidden * shape["seq_len"]


def _models(folder: Path) -> list[dict[str, Any]]:
    scope: dict[str, Any] = {"__name__": "flops_ref"}
    exec(compile((folder / "flops_ref.py").read_text(encoding="utf-8"), "flops_ref", "exec"), scope)
    return scope["M"]


def _restate(source: Path, target: Path, shape: dict[str, int]) -> None:
    """Copy a run whose manifest states another model."""
    shutil.copytree(source, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns("tables"))
    manifest = json.loads((target / "manifest.json").read_text(encoding="utf-8"))
    manifest |= {"model": shape, "tokens_per_step": 1_000_000}
    (target / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
