"""meshscope: where the FLOPs of a 3D-parallel training run went.

The parts are imported by name: ``meshscope.probe`` watches a run,
``meshscope.analyze`` turns what it saw into an account of MFU loss,
``meshscope.dashboard`` shows it, ``meshscope.reference_trainer`` is the trainer
with known faults that the others are checked against.
"""

__version__ = "0.1.0"

__all__ = ["__version__"]
