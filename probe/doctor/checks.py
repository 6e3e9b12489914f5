"""What of the probe works on this machine, one line each with the remedy for what does not."""

from __future__ import annotations

import importlib
import importlib.metadata
import mmap
import os
import platform
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from ..compat import torch_names, works
from ..compat.absent import NotApplicableError
from ..compat.cuda_events import cuda_events
from ..compat.interpreter import REMEDY, no_interpreter_lock
from ..hooks.collective_times import refusal
from ..job.identity import DISABLE_VARIABLE
from ..settings.config import ProbeConfig
from .versions import Installed, core_dependencies


class State(StrEnum):
    """What a check found."""

    OK = "ok"
    LIMITED = "limited"
    """It works, and something is left out."""
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at."""

    name: str
    state: State
    found: str
    remedy: str = ""
    """What to do about it; empty where nothing has to be done."""


_LEAST_FREE_FRAC = 0.05
"""Many file systems keep the last 5 % for root."""
_PTRACE_SCOPE = Path("/proc/sys/kernel/yama/ptrace_scope")
_INFINIBAND = Path("/sys/class/infiniband")


def all_checks(runs_dir: Path) -> list[Check]:
    """Look at everything; no check raises.

    Args:
        runs_dir: Where runs would go.
    """
    looks: dict[str, Callable[[], Iterator[Check]]] = {
        "software": _software,
        "torch": _torch,
        "devices": _devices,
        "files": lambda: _files(runs_dir),
        "sockets": _sockets,
        "attaching": _attaching,
        "settings": _settings,
    }
    found: list[Check] = []
    for name, look in looks.items():
        try:
            found += look()
        except Exception as error:  # noqa: BLE001 - a check that fails is a finding itself
            found.append(Check(name, State.MISSING, f"{type(error).__name__}: {error}"))
    return found


def _software() -> Iterator[Check]:
    python = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    if reason := no_interpreter_lock():
        yield Check("python", State.MISSING, f"{python}: {reason}", REMEDY)
    else:
        yield Check("python", State.OK, python)
    yield Check("meshscope", State.OK, importlib.metadata.version("meshscope"))
    for found in core_dependencies():
        yield _dependency(found)


_WITHOUT = {
    "nanoarrow": "without it records stay in the ring",
    "pyarrow": "without it no capture can be read",
    "nvidia-ml-py": "without it devices are not sampled",
}


def _dependency(found: Installed) -> Check:
    tested = f"tested {found.lowest} to {found.newest}"
    if found.version is None:
        loss = f": {_WITHOUT[found.package]}" if found.package in _WITHOUT else ""
        return Check(
            found.package, State.MISSING, "not installed", f"pip install {found.package}{loss}"
        )
    if found.is_too_old:
        return Check(
            found.package,
            State.LIMITED,
            f"{found.version}, older than {tested}",
            f"pip install '{found.package}>={found.lowest}'",
        )
    if found.is_newer:
        return Check(found.package, State.OK, f"{found.version}, newer than {tested}")
    return Check(found.package, State.OK, f"{found.version} ({tested})")


def _torch() -> Iterator[Check]:
    try:
        torch = importlib.import_module("torch")
    except ImportError as error:
        yield Check(
            "torch",
            State.MISSING,
            str(error),
            "Run doctor with the Python that trains: it has torch",
        )
        return
    built = torch.version.cuda or "no CUDA"
    yield Check("torch", State.OK, f"{torch.__version__}, built with {built}")
    for module in ("torch.distributed.pipelining.stage", "torch.distributed.pipelining.schedules"):
        with suppress(ImportError):
            importlib.import_module(module)
    looks: dict[str, tuple[Callable[[], Any], str]] = {
        "collectives": (
            torch_names.dispatcher,
            "the level stays at stages; use torch 2.11 or newer",
        ),
        "waits": (works.work_class, "ends of operations stay unknown"),
        "torch.compile": (torch_names.compiler_skip, "it compiles hooks below a compiled DDP"),
        "waits of DDP": (works.functional_works, "ends of its reductions stay unknown"),
        "process groups": (torch_names.process_group_class, "groups stay without members"),
        "data loading": (
            torch_names.data_loader_iterator_class,
            "mark it with probe.span('data_load')",
        ),
        "pipeline stages": (torch_names.pipeline_stage_class, "stages count as plain modules"),
        "pipeline schedules": (
            torch_names.pipeline_schedule_classes,
            "state them with probe.describe",
        ),
        "device times of collectives": (
            works.device_work_timing,
            "the level kernels is not there",
        ),
        "device times of stages": (cuda_events, "spans have the times of the host"),
    }
    for name, (look, fallback) in looks.items():
        try:
            look()
        except NotApplicableError as reason:
            yield Check(name, State.LIMITED, str(reason), fallback)
        except Exception as reason:  # noqa: BLE001 - whatever this torch answers is the finding
            yield Check(name, State.MISSING, str(reason), fallback)
        else:
            yield Check(name, State.OK, "can be recorded")
    hop_ns = torch_names.dispatcher_hop_ns(torch_names.dispatcher())
    yield Check(
        "dispatcher", State.OK, f"a Python kernel in front of an operator takes {hop_ns} ns here"
    )


def _devices() -> Iterator[Check]:
    try:
        torch = importlib.import_module("torch")
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    except ImportError:
        count = 0
    if count:
        yield Check("gpu", State.OK, f"{count} x {torch.cuda.get_device_name(0)}")
    else:
        yield Check("gpu", State.LIMITED, "torch sees none", "Times are those of the host")
    yield _nvml()
    ports = sorted(path.name for path in _INFINIBAND.iterdir()) if _INFINIBAND.is_dir() else []
    state = State.OK if ports else State.LIMITED
    yield Check("infiniband", state, ", ".join(ports) or "no device in sysfs")


def _nvml() -> Check:
    try:
        pynvml = importlib.import_module("pynvml")
    except ImportError:
        remedy = "pip install nvidia-ml-py, for power, clocks and link counters"
        return Check("nvml", State.MISSING, "nvidia-ml-py is not installed", remedy)
    try:
        pynvml.nvmlInit()
        found = f"driver {pynvml.nvmlSystemGetDriverVersion()}"
        pynvml.nvmlShutdown()
    except Exception as error:  # noqa: BLE001 - NVML has an error class for each code
        remedy = "Install the NVIDIA driver, or give the container access to it"
        return Check("nvml", State.MISSING, str(error), remedy)
    return Check("nvml", State.OK, found)


def _files(runs_dir: Path) -> Iterator[Check]:
    place = runs_dir
    while not place.exists() and place != place.parent:
        place = place.parent
    remedy = "Choose another folder with --runs or MESHSCOPE_RUN_DIR"
    if not os.access(place, os.W_OK | os.X_OK):
        yield Check("runs folder", State.MISSING, f"{place} cannot be written", remedy)
        return
    disk = shutil.disk_usage(place)
    free = f"{disk.free / 2**30:.1f} GB free in {place}"
    if disk.free < _LEAST_FREE_FRAC * disk.total:
        remedy = "Free some space: below 5 % only the ring is written"
        yield Check("runs folder", State.LIMITED, free, remedy)
    else:
        yield Check("runs folder", State.OK, free)
    try:
        with tempfile.TemporaryFile(dir=place) as file:
            os.posix_fallocate(file.fileno(), 0, mmap.PAGESIZE)
            mmap.mmap(file.fileno(), mmap.PAGESIZE).close()
    except OSError as error:
        yield Check("shared mapping", State.MISSING, f"{place}: {error.strerror}", remedy)
    else:
        yield Check("shared mapping", State.OK, "records survive a killed process")


def _sockets() -> Iterator[Check]:
    folder = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
    remedy = "Set XDG_RUNTIME_DIR to a short path of your own: running jobs cannot be reached"
    try:
        with (
            tempfile.TemporaryDirectory(dir=folder) as own,
            socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as bound,
        ):
            mode = os.stat(own).st_mode & 0o777
            bound.bind(os.path.join(own, "socket"))
    except OSError as error:
        yield Check("sockets", State.MISSING, f"{folder}: {error}", remedy)
        return
    if mode != 0o700:
        yield Check("sockets", State.MISSING, f"{folder}: new folders have mode {mode:o}", remedy)
    else:
        yield Check("sockets", State.OK, f"private sockets in {folder}")


def _attaching() -> Iterator[Check]:
    if hasattr(sys, "remote_exec"):
        yield Check("attach to any process", State.OK, "sys.remote_exec")
    else:
        remedy = "Start jobs under meshscope run, which can be reached later; or use Python 3.14"
        yield Check("attach to any process", State.LIMITED, "this Python cannot", remedy)
    try:
        scope = int(_PTRACE_SCOPE.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return
    state = State.OK if scope == 0 else State.LIMITED
    remedy = "" if scope == 0 else "Only parents may trace here: start jobs under meshscope run"
    yield Check("ptrace", state, f"ptrace_scope {scope}", remedy)


def _settings() -> Iterator[Check]:
    if os.environ.get(DISABLE_VARIABLE, "") not in ("", "0"):
        remedy = f"Unset {DISABLE_VARIABLE}"
        yield Check("switched off", State.MISSING, f"{DISABLE_VARIABLE} is set", remedy)
    reason = refusal(ProbeConfig(), os.environ)
    if reason is not None:
        yield Check("level kernels", State.LIMITED, str(reason))
