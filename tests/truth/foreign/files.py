"""Small input files, each of which shows one kind of fault."""

from __future__ import annotations

from pathlib import Path

from tests.truth.foreign.case import Case, Check, Reply
from tests.truth.foreign.readers import bar, cost, fails, never_says, says

FILES = "input files"

_GEMM_FLOPS = 2 * 512**3 * 20
_ASKED: dict[str, tuple[str, tuple[Check, ...]]] = {
    "01_blocked_in_free.json": ("diagnose", (
        says("first finding: blocked in cudaFree", r"cudaFree|allocator", first=True),
        cost("first finding, %", 97.0, 3.0),
        never_says("advice to fuse kernels", r"fuse (or capture )?small kernels"),
    )),
    "02_long_launch_call.json": ("diagnose", (
        says("names the call", "cudaLaunchKernel"),
        says("its time", r"\b(90(\.\d+)? ms|90(\.\d+)? ?%)"),
        says("its operator", "aten::conv2d"),
    )),
    "03_queued_behind_an_event.json": ("diagnose", (
        says("waits on the device for another stream", r"\bevent\b.*stream|other stream|another stream"),
        says("how long", r"\b9[56](\.\d+)? ?(ms|%)"),
    )),
    "04_idle_before_first_kernel.json": ("diagnose", (
        says("60 % nothing launched", r"(59|60)(\.\d+)? ?%[^.]{0,60}(nothing (was )?launched|launches nothing|before)|nothing (was )?launched[^.]{0,60}(59|60)(\.\d+)? ?%"),
        never_says("0 % nothing was launched", r"\b0% of the step nothing was launched"),
    )),
    "05_external_id_is_correlation.json": ("kernels", (
        Check("operators named", "yes", lambda r: _yes(all(o["operator"] for o in r.data["operators"]))),
        Check("GEMM TFLOP/s", _GEMM_FLOPS / 6e-3 / 1e12, lambda r: _tflops(r), 0.05),
    )),
    "06_data_loader_as_operator.json": ("diagnose", (
        says("data loading first", r"data.?load|input", first=True),
        cost("first finding, %", 50.0, 3.0),
        bar("data_load", 50.0, 3.0),
    )),
    "07_unknown_device_category.json": ("ingest", (
        says("device events are read", r"mtia|20 (device )?events|kernel 20\b"),
        never_says("there are no device events", "there are no device events"),
    )),
    "08_ascend_trace_view.json": ("ingest", (
        says("is called Ascend", r"ascend\b"),
        never_says("there are no device events", "there are no device events"),
    )),
    "09_windows_paths_rank0.pickle": ("diagnose", (
        Check("optimizer state, GiB", 4.0, lambda r: r.data["memory"][0]["optimizer_bytes"] / 2**30, 0.01),
    )),
    "10_out_of_memory_rank0.pickle": ("diagnose", (
        Check("severity", "critical", lambda r: r.data["findings"][0]["severity"]),
        says("asked for 5 GiB", r"5(\.0+)? GiB|5120(\.0)? MiB"),
        says("free 90 MiB", r"90(\.0)? MiB"),
        says("reserved 78 GiB", r"78(\.0+)? GiB"),
        says("where", r"model\.py", first=True),
    )),
    "11_nsys_cuda_failed.sqlite": ("ingest", (
        says("what Nsight said", "CUDA driver version"),
        never_says("advice to trace what was traced", r"--trace=cuda"),
    )),
    "12_tail_of_previous_step.json": ("diagnose", (
        # 13.25 of 42.7 ms are kernels of the step before, and the host waits until they end.
        Check("device time of this step, ms", 29.1, lambda r: _busy_ms(r), 0.3),
    )),
    "13_lfs_pointer.sqlite": ("ingest", (
        says("is a Git LFS pointer", r"git lfs\b"),
        says("the command that fetches it", "git lfs pull"),
        fails(),
    )),
    "14_launches_without_kernels.json": ("diagnose", (
        says("device activity was not collected", r"not collected|CUPTI|permission|profiler"),
        never_says("an all-clear", "nothing that costs 1%"),
    )),
    "15_report.nsys-rep": ("ingest", (
        says("the command that exports it", r"nsys export[^\n]*sqlite"),
        fails(),
    )),
}  # fmt: skip


def files(shared: Path) -> list[Case]:
    """Return a case for each input file that is there."""
    folder = shared / "cases" / "inputs"
    return [
        Case(name, FILES, _asking(command, folder / name), checks)
        for name, (command, checks) in _ASKED.items()
        if (folder / name).is_file()
    ]


def _asking(command: str, path: Path) -> tuple[str, ...]:
    as_json = () if command == "ingest" else ("--format", "json")
    return (command, str(path), *as_json)


def _yes(is_so: bool) -> str:
    return "yes" if is_so else "no"


def _tflops(reply: Reply) -> float:
    row = reply.data["operators"][0]
    return next(float(v) for k, v in row.items() if "flops_per_s" in k) / 1e12


def _busy_ms(reply: Reply) -> float:
    own = [b for b in reply.data["waterfall"] if b["class"] in ("compute", "forward", "backward")]
    return sum(b["dur_ns"] for b in own) / 1e6
