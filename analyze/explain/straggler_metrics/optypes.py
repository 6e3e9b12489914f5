"""Operation types of an NDTimeline job, and which of them count as communication."""

from __future__ import annotations

FORWARD = "forward-compute"
BACKWARD = "backward-compute"
FORWARD_SEND, FORWARD_RECV = "forward-send", "forward-recv"
BACKWARD_SEND, BACKWARD_RECV = "backward-send", "backward-recv"
GATHER = "params-all-gather"
SCATTER = "grads-reduce-scatter"
SEPARATE = "separate-grads-all-reduce"
LAYERNORM = "layernorm-grads-all-reduce"
EMBEDDING = "embedding-grads-all-reduce"
CLIP = "optimizer-clip-main-grad"
OPTIMIZER = "optimizer"
GC = "gc"

COMPUTE = (FORWARD, BACKWARD)
TRANSFERS = (FORWARD_SEND, FORWARD_RECV, BACKWARD_SEND, BACKWARD_RECV)
REPLICATED = (GATHER, SCATTER, SEPARATE)
"""Collectives of all replicas of one stage."""
COMMUNICATION = (*TRANSFERS, *REPLICATED, LAYERNORM, EMBEDDING, CLIP)
"""Types whose ideal is a median; the others, which are work, get a mean."""
KNOWN = (*COMPUTE, *COMMUNICATION, OPTIMIZER, GC)

MERGED = {
    FORWARD_SEND: "forward-pp-comm",
    FORWARD_RECV: "forward-pp-comm",
    BACKWARD_SEND: "backward-pp-comm",
    BACKWARD_RECV: "backward-pp-comm",
}
"""Under which name the two ends of a transfer are billed together."""
FIRST = "first-op"
"""Name under which the first operation of each worker is billed for its launch delay."""
