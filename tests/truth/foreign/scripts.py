"""Inputs that small scripts write: profiler traces, flight recorder dumps, memory of stages."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.truth.foreign.case import Case, Check
from tests.truth.foreign.readers import bar, cost, first_fault, no_slow_rank, says, step_ms

WRITTEN = "written by scripts"
_FR_LINES = r"train\.py"
_RANK_2 = says("rank 2 differs", r"\brank 2\b", first=True)
_AT_16 = says("at number 16", r"\b16\b", first=True)
_WHERE = says("file and line", _FR_LINES)

_SCRIPTS: dict[str, tuple[tuple[str, ...], tuple[Check, ...]]] = {
    "alternate-8x200": (("kin_cases.py", "alternate", "IN", "7", "8", "200"), (
        no_slow_rank(), first_fault("jitter"), cost("jitter, %", 32.0, 3.0, "jitter"))),
    "alternate-4x60": (("kin_cases.py", "alternate", "IN", "7", "4", "60"), (
        no_slow_rank(), first_fault("jitter"), cost("jitter, %", 32.0, 3.0, "jitter"))),
    "alternate-16x100": (("kin_cases.py", "alternate", "IN", "7", "16", "100"), (
        no_slow_rank(), first_fault("jitter"), cost("jitter, %", 32.0, 3.0, "jitter"))),
    "subus": (("kin_cases.py", "subus", "IN"), (bar("compute", 2.0, 0.1), step_ms(10.0, 0.01))),
    "norank": (("kin_cases.py", "norank", "IN"), (
        says("ranks are unknown", r"rank"), says("the remedy", r"rename|rank_?\d|topology|name"))),
    "norank1": (("kin_cases.py", "norank1", "IN"), (bar("compute", 70.0, 1.5), no_slow_rank())),
    "devkernel": (("kin_cases.py", "devkernel", "IN"), (
        bar("compute", 60.0, 0.5), bar("exposed", 10.0, 0.5), bar("unattributed", 30.0, 0.5))),
    "ahead": (("kin_cases.py", "ahead", "IN"), (step_ms(1.0, 0.01),)),
    "twice": (("kin_cases.py", "twice", "IN"), (
        bar("exposed", 60.0, 0.6), bar("compute", 40.0, 0.6))),
    "fsdp_cpu": (("kin_cases.py", "fsdp_cpu", "IN"), (
        first_fault("straggler_rank rank 5"), cost("rank 5, %", 31.0, 1.5, "straggler_rank"))),
    "skew": (("kin_cases.py", "skew", "IN"), (
        first_fault("straggler_rank rank 1"), cost("rank 1, %", 19.0, 1.5, "straggler_rank"),
        says("the clock is 37 ms ahead", r"-?37\.0"))),
    "links": (("kin_links.py", "IN"), (
        first_fault("slow_link"), says("group 4,5", r"4,\s?5", first=True),
        cost("its cost, %", 24.4, 1.0, "slow_link"))),
    "pipeline-arrow": (("kin_pp.py", "IN", "1f1b", "4", "8", "0", "0", "arrow"), (
        step_ms(34.95, 0.9), bar("compute", 68.7, 2.0), bar("exposed_pp_wait", 25.5, 2.0),
        says("the bubble", r"bubble"))),
    "pipeline-named": (("kin_pp.py", "IN", "1f1b", "4", "8", "1"), (
        step_ms(34.95, 0.9), bar("compute", 68.7, 2.0), bar("exposed_pp_wait", 25.5, 2.0),
        says("the bubble", r"bubble"))),
    "pipeline-gpipe-heavy": (("kin_pp.py", "IN", "gpipe", "4", "8", "1", "500"), (
        step_ms(46.36, 0.9), first_fault("stage_imbalance stage 3"),
        bar("exposed_pp_wait", 37.3, 2.0))),
    "recorder-size": (("make_fr.py", "IN", "size"), (
        _RANK_2, _AT_16, _WHERE, says("2000 for 1000", r"2,?000.*1,?000|1,?000.*2,?000|8,?000 B.*4,?000 B", first=True))),
    "recorder-kind": (("make_fr.py", "IN", "kind"), (
        _RANK_2, _AT_16, _WHERE, says("broadcast for all_reduce", "broadcast", first=True))),
    "recorder-dtype": (("make_fr.py", "IN", "dtype"), (
        _RANK_2, _AT_16, _WHERE, says("BFloat16 for Float", "bfloat16", first=True))),
    "recorder-order": (("make_fr.py", "IN", "op_order"), (
        _RANK_2, _AT_16, _WHERE, says("another order", r"order|all_reduce", first=True))),
    "recorder-all-to-all": (("make_fr.py", "IN", "a2a"), (
        says("sizes do not fit", r"\b6\b.*\b4\b|\b4\b.*\b6\b|24 B.*16 B", first=True), _RANK_2, _AT_16)),
    "recorder-desync": (("make_fr.py", "IN", "desync"), (
        says("rank 7", r"\brank 7\b", first=True), says("at 183", r"\b183\b", first=True), _WHERE)),
    "memory-both-ends": (("vis_mem.py", "IN", "10.57", "7.85", "10.72"), (
        says("stage 0", r"stages? 0.*memory|memory.*stages? 0"),
        says("1.35 x", r"1\.3[45]"), says("1.37 x", r"1\.3[67]"))),
    "memory-in-flight": (("vis_mem.py", "IN", "40", "32", "24", "16"), (
        says("microbatches in flight", r"in flight"),)),
    "snapshots": (("snap.py", "IN"), (
        says("stage 3 has most", r"(rank|stage) 3 ", first=True),
        says("8.79 GiB", r"8\.79"),
        says("the head, 2400 MiB", r"2,?400(\.0)? MiB|2\.34 GiB|stage 3 holds.*1\.56 GiB.*400 MiB.*400 MiB.*head"),
        says("the logits, 1500 MiB", r"1,?500(\.0)? MiB|1\.46 GiB"))),
}  # fmt: skip


def scripts(shared: Path) -> list[Case]:
    """Return a case for each script that writes an input."""
    folder = shared / "cases"
    cases = []
    for name, ((script, *arguments), checks) in _SCRIPTS.items():
        if not (folder / script).is_file():
            continue
        given = ["capture" if one == "IN" else one for one in arguments]
        before = (sys.executable, str(folder / script), *given)
        more = ("--topology", str(folder / "pp4.toml")) if script == "snap.py" else ()
        command = ("diagnose", "capture", *more, "--format", "json")
        cases.append(Case(name, WRITTEN, command, checks, (before,)))
    return cases
