"""Runs of the reference trainer whose ranks are recorded, for tests that compare both."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pandas as pd
from tests.distributed.forked_ranks import PATIENCE_S, RECORD_ALL, join_ranks, start_ranks

from meshscope import probe
from meshscope.probe.reader.run import read_run
from meshscope.reference_trainer.config.config import TrainerConfig
from meshscope.reference_trainer.faults.ground_truth import truth_path
from meshscope.reference_trainer.parallel.mesh import Place
from meshscope.reference_trainer.run.train import train


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRun:
    """What a run left behind."""

    codes: list[int | None]
    """Exit code of each rank; None for one that was still there at the end."""
    losses: list[float]
    """As the reporter wrote them; empty where it did not come so far."""
    faults: pd.DataFrame
    """The applied faults of all ranks, with a column ``rank``."""
    steps: pd.DataFrame
    """The steps of all ranks, as the trainer noted them."""
    tables: dict[str, pd.DataFrame]
    """What the probe recorded."""

    def fault(self, kind: str, step: int) -> pd.DataFrame:
        """Return the applied faults of a kind in a step."""
        rows = self.faults
        return rows[(rows["kind"] == kind) & (rows["step"] == step)]

    def spans(self, kind: str, step: int, rank: int) -> pd.DataFrame:
        """Return the recorded spans of a kind."""
        rows = self.tables["span"]
        return rows[
            (rows["kind"].astype(str) == kind) & (rows["step"] == step) & (rows["rank"] == rank)
        ]


def start_recorded(
    config: TrainerConfig, out: Path, change: Callable[[], None] | None = None
) -> list[BaseProcess]:
    """Start one recorded process per rank; ``change`` is done to the program of each before it trains."""
    world_size = config.layout.world_size
    return start_ranks(
        _record_and_train, [(config, rank, world_size, out, change) for rank in range(world_size)]
    )


def recorded_run(
    config: TrainerConfig, out: Path, change: Callable[[], None] | None = None
) -> RecordedRun:
    """Train until all ranks have ended, and return what the run left."""
    return what_is_left(start_recorded(config, out, change), out)


def what_is_left(
    ranks: list[BaseProcess], out: Path, *, patience_s: float = PATIENCE_S
) -> RecordedRun:
    """Wait for the ranks, end those that run on, and return what the run left."""
    codes = join_ranks(ranks, patience_s)
    truth = [
        json.loads(line) | {"rank": rank}
        for rank in range(len(ranks))
        for line in truth_path(out, rank).read_text(encoding="utf-8").splitlines()
    ]
    losses = out / "losses.json"
    return RecordedRun(
        codes=codes,
        losses=json.loads(losses.read_text())["loss"] if losses.exists() else [],
        faults=_frame(truth, "fault", ["kind", "step", "rank"]),
        steps=_frame(truth, "step", ["step", "rank"]),
        tables={name: table.to_pandas() for name, table in read_run(out / "run").tables.items()},
    )


def _frame(truth: list[dict[str, Any]], record: str, columns: list[str]) -> pd.DataFrame:
    rows = [line for line in truth if line["record"] == record]
    return pd.DataFrame(rows) if rows else pd.DataFrame(columns=columns)


def _record_and_train(
    config: TrainerConfig,
    rank: int,
    world_size: int,
    out: Path,
    change: Callable[[], None] | None = None,
) -> None:
    import os

    if change is not None:
        change()
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(world_size), "LOCAL_RANK": str(rank)}
    os.environ |= {"LOCAL_WORLD_SIZE": str(world_size), "MESHSCOPE_RUN_DIR": str(out / "run")}
    os.environ |= RECORD_ALL | os.environ
    probe.attach(out / "run")
    place = Place(
        rank=rank, world_size=world_size, local_rank=rank, rendezvous=f"file://{out}/meet"
    )
    train(config, place, out=out)
    probe.detach()
