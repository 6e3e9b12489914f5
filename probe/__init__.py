"""Watch a training run from inside every rank, at almost no cost.

::

    from meshscope import probe

    probe.attach()                          # or: meshscope run -- torchrun ... train.py
    with probe.span("data_load"):
        batch = next(batches)
    probe.sequences([len(one) for one in documents])    # optional: how much work that is
    probe.step(tokens=batch.numel())        # optional: optimizers end steps by themselves

Nothing here imports torch or raises into the training code, and everything is
a no-op where nothing is attached.
"""

from typing import TYPE_CHECKING

from .schema.first_use import at_first_use

if TYPE_CHECKING:
    from .api import attach, describe, detach, sequences, span, step
    from .session.session import Session
    from .settings.config import ProbeConfig

__all__ = [
    "ProbeConfig",
    "Session",
    "attach",
    "describe",
    "detach",
    "sequences",
    "span",
    "step",
]

if not TYPE_CHECKING:  # A checker would take this for a module that has any name.
    __getattr__, __dir__ = at_first_use(
        globals(),
        dict.fromkeys(__all__, "api")
        | {"ProbeConfig": "settings.config", "Session": "session.session"},
    )
