"""Where work is done: in this process, in processes of this machine, on a cluster.

All give the results of a function on some items in the order of the items, so that what is computed
does not depend on where. A worker that is killed costs time only: what it had is done again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeVar

from meshscope.probe.schema.errors import ConfigError, MeshscopeError

from ..tables.processes import WorkerDied, map_in_processes, report_bytes
from ..wording.message import message

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")
OnDone = Callable[[int], None]
"""Is told how many more items are done."""


class LostWorkError(MeshscopeError):
    """An item whose worker died each time."""


class Executor(Protocol):
    """Does the same to each of some items."""

    def map(
        self, function: Callable[[_Item], _Result], items: Sequence[_Item], on_done: OnDone
    ) -> Iterator[_Result]:
        """Yield the results in the order of the items.

        Args:
            function: Importable by name, or a ``functools.partial`` of such a function.
            items: Its arguments; small, as they go to other processes.
            on_done: Is told how many more items are done, in whatever order they are.

        Raises:
            LostWorkError: The workers that had one item died again and again.
            MeshscopeError: The function raised it.
        """


class InThisProcess:
    """One item after the other, here."""

    def map(
        self, function: Callable[[_Item], _Result], items: Sequence[_Item], on_done: OnDone
    ) -> Iterator[_Result]:
        """Yield the results as they are made."""
        for item in items:
            yield function(item)
            on_done(1)


class LocalProcesses:
    """Several processes of this machine; they end with this one, and with Ctrl-C.

    Args:
        workers: How many.
    """

    def __init__(self, workers: int) -> None:
        self._workers = workers

    def map(
        self, function: Callable[[_Item], _Result], items: Sequence[_Item], on_done: OnDone
    ) -> Iterator[_Result]:
        """Yield the results when all are there."""
        tasks = [(function, item) for item in items]
        found = map_in_processes(_do, tasks, workers=self._workers, on_bytes=on_done)
        for item, result in zip(items, found, strict=True):
            if isinstance(result, WorkerDied):
                raise LostWorkError(
                    message("refused.killed_twice"),
                    where=str(item),
                    remedy=message("advice.fewer_workers"),
                )
            if isinstance(result, MeshscopeError):
                raise result
            yield result


class DaskCluster:
    """The workers of a running Dask cluster, which see the same files under the same paths.

    Args:
        address: Of its scheduler, such as ``tcp://host:8786``.
    """

    def __init__(self, address: str) -> None:
        self._address = address

    def map(
        self, function: Callable[[_Item], _Result], items: Sequence[_Item], on_done: OnDone
    ) -> Iterator[_Result]:
        """Yield the results when all are there.

        Raises:
            ConfigError: Nobody answers at the address.
            LostWorkError: The workers that had one item died again and again.
        """
        from distributed import Client, KilledWorker, as_completed

        try:
            client = Client(self._address, set_as_default=False, timeout=_CONNECT_S)
        except (OSError, TimeoutError, ValueError) as error:
            raise ConfigError(
                message("refused.no_dask_scheduler", error=error),
                where=self._address,
                remedy=message("advice.start_dask"),
            ) from error
        with client:
            futures = client.map(function, list(items), pure=False)
            try:
                for _ in as_completed(futures, loop=client.loop):
                    on_done(1)
                yield from client.gather(futures)
            except KilledWorker as error:
                raise LostWorkError(
                    message("refused.workers_killed"),
                    where=self._address,
                    remedy=message("advice.workers_with_more_memory"),
                ) from error
            finally:
                client.cancel(futures)


_CONNECT_S = 10
"""A wrong address must not look like work."""


def executor_of(workers: int, cluster: str | None) -> Executor:
    """Return where to work: the cluster if one is named, else this machine.

    Args:
        workers: Processes of this machine; one is this process.
        cluster: Address of a Dask scheduler.
    """
    if cluster is not None:
        return DaskCluster(cluster)
    return LocalProcesses(workers) if workers > 1 else InThisProcess()


def _do(task: tuple[Callable[[_Item], _Result], _Item]) -> _Result | MeshscopeError:
    """Return what the function does; an error of ours goes back whole, to say what, where and the remedy."""
    function, item = task
    try:
        result = function(item)
    except MeshscopeError as error:
        return error
    report_bytes(1)
    return result
