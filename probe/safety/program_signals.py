"""Tells what a signal handler of the program has raised from an error of the probe.

Between any two instructions of the main thread the interpreter may run a handler that the program
has set for a signal, so also between two of ours. What that raises (the end of an alarm, a
scheduler that wants the node back) is for the training code: no ``except Exception`` of the probe
may keep it.
"""

from __future__ import annotations

from traceback import walk_tb
from types import FrameType

_OWN = "meshscope.probe."


def pass_on(error: BaseException) -> None:
    """Raise an error again that the program has raised, to be called where errors are kept.

    Raises:
        BaseException: The error itself, if a signal handler raised it or it is no ``Exception``.
    """
    if is_the_programs(error):
        raise error


def is_the_programs(error: BaseException) -> bool:
    """Tell whether a signal handler raised it. None of our own is no ``Exception``.

    A handler gets the frame that it interrupts as an argument, and nothing else that we call does.
    """
    if not isinstance(error, Exception):
        return True
    interrupted: FrameType | None = None
    for frame, _ in walk_tb(error.__traceback__):
        if interrupted is not None and _is_handler(frame, interrupted):
            return True
        interrupted = frame
    return False


def _is_handler(frame: FrameType, interrupted: FrameType) -> bool:
    if str(frame.f_globals.get("__name__")).startswith(_OWN):
        return False
    values = list(frame.f_locals.values())
    gathered = [inner for value in values if type(value) is tuple for inner in value]
    return any(value is interrupted for value in (*values, *gathered))
