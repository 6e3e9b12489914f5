"""How processes that work for another one end on Ctrl-C: at once and without a word, for their owner says why.

The server that starts them imports this before all else. It is started with the interrupt held back, because until
here it would answer with a traceback.
"""

from __future__ import annotations

import os
import signal

_INTERRUPTED = 130
"""Exit code of a process that was interrupted, as of a shell."""


def end_on_interrupt() -> None:
    """End this process at once on an interrupt, unless its owner takes no notice of any."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, lambda *_: os._exit(_INTERRUPTED))


if signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ()):
    end_on_interrupt()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT,))
