"""A small 3D-parallel trainer whose faults are known: what the analyses are checked against."""
