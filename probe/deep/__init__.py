"""Deep traces on demand: the same few steps of every rank, with kernels and operators.

Two ways. Kineto's own daemon client, which lives in a thread of C++ inside torch, is
told by the node agent which iterations to record (``kineto_fabric``); it writes the file
without the interpreter. Where it was not switched on at the start of the process, the
profiler is run from the training thread at step borders (``in_process``), which stalls
that thread while the trace is written. ``rank_traces`` is what a rank offers, ``arming``
how all ranks agree on the steps, ``sealing`` what becomes of the files.
"""
