"""A small tensor x pipeline x data parallel trainer whose faults are known."""
