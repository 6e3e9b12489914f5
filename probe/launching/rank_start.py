"""Attach the probe in a rank that was started under ``meshscope run``.

A rank is told who it is by the variables of its launcher, or by an argument of
``init_process_group``: then it is attached once it has joined its group. One that nobody
numbers is a job of its own once it trains. With ``--dormant`` the rank opens its control socket
only, and records when asked.

A rank is recorded by one process: the first one that has the rank's variables
and imports torch. It leaves its mark in the environment, by which ``bootstrap``
knows the processes that it spawns (data loader workers, compile workers): they
inherit the rank's variables and must leave its capture alone, also once it is detached.
"""

from __future__ import annotations

import os
import sys

from ..job.identity import (
    ATTACHED_VARIABLE,
    DORMANT_VARIABLE,
    RUN_DIR_VARIABLE,
    as_single_process,
    is_launcher,
    process_mark,
)
from ..safety import forked_exit
from ..safety.notices import tell
from ..safety.program_signals import pass_on
from ..safety.room import too_few_threads
from ..watches.imports import ImportWatch
from ..watches.job_watch import GroupWatch, OptimizerWatch


class _Stderr:
    """Where an error of the attachment is reported."""

    def failed(self, error: BaseException) -> None:
        """Say it in one line; what a signal handler of the program raised goes on."""
        pass_on(error)
        tell(f"not attached: {type(error).__name__}: {error}")


def when_torch_is_imported() -> None:
    """Attach as soon as torch is imported, unless this is a launcher of ranks."""
    if is_launcher(sys.orig_argv):
        return
    forked_exit.prepare()
    watch = ImportWatch()

    def attach() -> None:
        watch.stop()
        _attach()

    watch.start()
    _have_kineto_deaf(watch)
    watch.when_imported("torch", attach, _Stderr())


def when_it_trains() -> None:
    """Attach once this process, or a child that it forks, has joined a group or trains without."""
    if is_launcher(sys.orig_argv):
        return
    forked_exit.prepare()
    imports = ImportWatch()

    def attach_member() -> None:
        optimizers.stop()
        imports.stop()
        _attach()

    def attach_alone() -> None:
        from .. import api

        groups.stop()
        imports.stop()
        as_single_process(os.environ)
        _attach()
        api.after_the_first_step(optimizers.let_go)

    groups = GroupWatch(attach_member, _Stderr())
    optimizers = OptimizerWatch(attach_alone, _Stderr())
    imports.start()
    _have_kineto_deaf(imports)
    groups.start(imports)
    optimizers.start(imports)


def _have_kineto_deaf(watch: ImportWatch) -> None:
    """Watch the library of torch being loaded: the thread of Kineto's client then gets no signal."""
    watch.when_loading("torch._C", _spare_kineto, _Stderr())


def _spare_kineto() -> None:
    """Do without Kineto's client that ``meshscope run`` asked for, where no thread is left for it.

    The training could not import torch. Deep traces are taken in the process then.
    """
    from ..deep.kineto_fabric import DAEMON_VARIABLE, DIRECTORY_VARIABLE

    is_ours = {DAEMON_VARIABLE, DIRECTORY_VARIABLE, RUN_DIR_VARIABLE} <= os.environ.keys()
    if is_ours and too_few_threads():
        del os.environ[DAEMON_VARIABLE]


def _attach() -> None:
    os.environ[ATTACHED_VARIABLE] = process_mark(os.environ)
    from .. import api

    reason = api.stand_by()
    if os.environ.get(DORMANT_VARIABLE, "") in ("", "0"):
        api.attach()  # It says the same where there is no room.
    elif reason:
        tell(f"not to be attached: {reason}")
