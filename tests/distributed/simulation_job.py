"""A step with real memory and real neighbours, counted as a simulated one is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from meshscope.reference_trainer.config.config import TrainerConfig
from meshscope.reference_trainer.parallel.mesh import Place, open_mesh
from meshscope.reference_trainer.replica.memory_account import LiveStorage
from meshscope.reference_trainer.simulation.pass_watch import Holding
from meshscope.reference_trainer.simulation.simulation import SimulatedRank, run_step


def real_step(config: TrainerConfig, place: Place, *, out: Path) -> None:
    """Run one step of a rank, and write down what it held."""
    live = LiveStorage(Holding.OTHER)
    with open_mesh(config.layout, config.device, place) as mesh, live.watching():
        found = run_step(config, mesh, live)
    (out / f"{place.rank}.json").write_text(json.dumps(summary(found)))


def summary(found: SimulatedRank) -> dict[str, Any]:
    """Return what was held, in a form that can be written and compared."""
    return {
        "held": list(found.held),
        "peaks": {phase.name: phase.peak_bytes for phase in found.phases},
        "activations": found.activations_bytes,
        "order": [str(one) for one in found.order],
        "payload": sorted([name, axis, size] for (name, axis), size in found.payload_bytes.items()),
    }
