"""Steps of a file that is cut off: what came behind the cut is not known, and is no idle time."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from meshscope.probe.schema.printable import listed

from ...wording.limits import Limit
from ...wording.message import message
from .columns import StepWindows
from .event_columns import RoledEvents

LAUNCHES = re.compile(
    r"(?:cuda|cu|hip|xpu)\w*(?:LaunchKernel|LaunchCooperativeKernel|MemcpyAsync|MemsetAsync)"
    r"|urEnqueue(?:KernelLaunch|USMMemcpy|USMFill)",
    re.IGNORECASE,
)
"""Calls of which each gives one device activity."""


def whole_steps(roles: RoledEvents, steps: StepWindows) -> frozenset[int]:
    """Return the steps of a file that is cut off of which it surely holds everything.

    A profiler writes by kind (operators, calls, then the device) or by time. Either way a step
    is whole if every call in it that launches work has its device activity, and another call
    comes behind it. Without any device activity operators stand for the calls; where other
    ranks have some, that says nothing, which ``StepsOfFile.has_device`` tells.
    """
    if steps.is_whole_file:
        return frozenset()
    launching = np.array(sorted(roles.names_like(LAUNCHES)), dtype=np.int64)
    done = np.unique(roles.device.correlation)
    broken, last = set[int](), np.iinfo(np.int64).min
    for part in roles.launch.parts():
        last = max(last, int(part.start.max()))
        is_lost = np.isin(part.name, launching) & ~np.isin(part.correlation, done)
        broken.update(steps.step_of(part.start[is_lost]).tolist())
    if not len(roles.launch):
        last = max((int(part.start.max()) for part in roles.operator.parts()), default=last)
    ended = steps.number[steps.end <= last].tolist()
    return frozenset(number for number in ended if number not in broken)


class StepsOfFile(Protocol):
    """What is needed of one file."""

    @property
    def rank(self) -> int:
        """Return its rank."""

    @property
    def tables(self) -> dict[str, pa.Table]:
        """Return its tables, ``step`` among them."""

    @property
    def whole_steps(self) -> frozenset[int] | None:
        """Return the steps that it surely holds, None where it is not cut off."""

    @property
    def marks_steps(self) -> bool:
        """Return whether it marks steps; else the whole file is one."""

    @property
    def numbers_steps(self) -> bool:
        """Return whether it says the numbers of its steps; else they are counted from 1."""

    @property
    def has_device(self) -> bool:
        """Return whether it holds work of a device."""


def leave_out_cut_steps(files: Sequence[StepsOfFile]) -> Iterator[Limit]:
    """Take the steps that are not whole out of the tables; yield a sentence on each such rank.

    A cut file that lacks a step which all whole files have is left out of the steps, and so is
    one that marks none beside others that do: the steps of the others would go with it. Its
    other rows stay. Where every file is cut, the steps that are whole in all of them count, and
    if there is none, what the files have.
    """
    marked = [file for file in files if file.numbers_steps]
    marked = marked or [file for file in files if file.marks_steps]
    if marked and len(marked) < len(files):
        known_to_mark = set(map(id, marked))
        for file in files:
            if id(file) not in known_to_mark:
                _keep(file, ())
                yield message("missing.rank_without_marks", rank=file.rank)
    whole = [file for file in marked if file.whole_steps is None]
    wanted = _common([_numbers(file) for file in whole])
    needs_device = any(file.has_device for file in whole)
    for file in marked:
        if file.whole_steps is None:
            continue
        known = frozenset() if needs_device and not file.has_device else file.whole_steps
        if whole and not wanted <= known:
            count = len(_numbers(file))
            _keep(file, ())
            yield message("missing.cut_rank", rank=file.rank, begun=count, whole=len(known))
        elif known:
            lost = _numbers(file) - known
            _keep(file, known)
            if lost:
                steps = listed(sorted(lost), most=16)
                yield message("missing.cut_steps", rank=file.rank, steps=steps)


def _common(numbers: Sequence[frozenset[int]]) -> frozenset[int]:
    return frozenset.intersection(*numbers) if numbers else frozenset()


def _numbers(file: StepsOfFile) -> frozenset[int]:
    return frozenset(file.tables["step"]["step"].to_pylist())


def _keep(file: StepsOfFile, numbers: Collection[int]) -> None:
    table = file.tables["step"]
    wanted = pa.array(sorted(numbers), table["step"].type)
    file.tables["step"] = table.filter(pc.is_in(table["step"], value_set=wanted))
