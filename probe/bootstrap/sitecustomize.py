"""Found by Python at start under ``meshscope run``: attaches the probe to ranks.

It must not be noticed by anything else: a ``sitecustomize`` that this one
hides is run first, and processes that are no rank are left alone: they are watched for an import at most.
"""

import importlib.machinery
import importlib.util
import os
import sys


def _run_hidden_sitecustomize() -> None:
    """Run the module that would have been imported if this folder were not on the path."""
    own = os.path.dirname(os.path.abspath(__file__))
    path = [entry for entry in sys.path if os.path.abspath(entry or ".") != own]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", path)
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


def _is_of_another() -> bool:
    """Tell whether a parent has left its mark, as ``meshscope.probe.job.identity`` writes it.

    Not imported from there: most processes that come here are no ranks.
    """
    pid, _, rank = os.environ.get("MESHSCOPE_ATTACHED_PID", "").partition(" ")
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE")
    own_rank = "/".join(os.environ.get(name, "") for name in names)
    return pid not in ("", str(os.getpid())) and rank in ("", own_rank)


def _attach_if_rank() -> None:
    """Have ranks attached: those that have ``RANK``, and those that train without it.

    Not where a parent process was attached as this rank already.
    """
    if _is_of_another() or os.environ.get("MESHSCOPE_DISABLE", "") not in ("", "0"):
        return
    try:
        from meshscope.probe.launching import rank_start
    except Exception as error:  # noqa: BLE001 - the interpreter must start whatever happens
        if "RANK" in os.environ and sys.stderr is not None:
            sys.stderr.write(
                f"meshscope: not attached: this Python cannot import meshscope ({error})\n"
            )
        return
    if "RANK" in os.environ:
        rank_start.when_torch_is_imported()
    else:
        rank_start.when_it_trains()


try:
    _run_hidden_sitecustomize()
finally:
    _attach_if_rank()
