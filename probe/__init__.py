"""Watch a training run from inside every rank, at almost no cost.

::

    from meshscope import probe

    probe.attach()                          # or: meshscope run -- torchrun ... train.py
    with probe.span("data_load"):
        batch = next(batches)
    probe.step(tokens=batch.numel())        # optional: optimizers end steps by themselves

Nothing here imports torch or raises into the training code, and everything is
a no-op where nothing is attached.
"""

from .api import attach, describe, detach, span, step
from .config import ProbeConfig
from .session import Session

__all__ = ["ProbeConfig", "Session", "attach", "describe", "detach", "span", "step"]
