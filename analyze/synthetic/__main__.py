"""``python -m meshscope.analyze.synthetic``: write a synthetic run with its truth."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Annotated

import typer

from meshscope.probe.schema.errors import ConfigError, MeshscopeError
from meshscope.probe.schema.layout import ParallelLayout
from meshscope.probe.schema.terms import ScheduleKind

from ..scale.executors import Executor, executor_of
from ..tables.segment_files import SEGMENT_RANKS, read_list
from ..tables.table_folder import FOLDER, read_folder
from ..wording.message import message
from .faults import FaultKind, parse_fault
from .job import Costs, SyntheticJob
from .record import record
from .run_directory import write_run
from .sharded import can_be_sharded, write_sharded_run
from .simulate import make_simulation
from .truth import Truth, truth_of

USAGE_ERROR = 2
_WorkersOption = Annotated[
    int, typer.Option(min=1, help="Processes that write a job of more than 256 ranks.")
]
_ClusterOption = Annotated[
    str | None, typer.Option(help="Dask scheduler whose workers write it: tcp://host:8786.")
]


def parse_layout(text: str) -> ParallelLayout:
    """Read ``tp8,pp16,dp128`` (axes left out are 1); ``order=dp-pp-cp-tp`` may follow.

    Raises:
        ConfigError: A part is no axis with a size.
    """
    sizes: dict[str, int | str] = {}
    for part in text.split(","):
        name = part.rstrip("0123456789")
        if part.startswith("order="):
            sizes["order"] = part.removeprefix("order=")
        elif name in ("tp", "pp", "dp", "cp", "ep", "vpp") and name != part:
            sizes[name] = int(part.removeprefix(name))
        else:
            raise ConfigError(
                message("refused.no_axis_size", part=part),
                where="layout",
                remedy=message("advice.axis_sizes"),
            )
    return ParallelLayout.from_json(sizes)


def parse_costs(texts: list[str]) -> Costs:
    """Read durations such as ``head=2.5``: the names of ``Costs`` without ``_ns``, in ms.

    Raises:
        ConfigError: A name is not known, or a value is no number.
    """
    known = {field.name.removesuffix("_ns"): field.name for field in fields(Costs)}
    values: dict[str, int] = {}
    for text in texts:
        name, _, value = text.partition("=")
        try:
            values[known[name]] = round(float(value) * 1e6)
        except KeyError:
            raise ConfigError(
                message("refused.no_cost", name=name),
                where="cost",
                remedy=message("advice.choose", known=list(known)),
            ) from None
        except ValueError:
            raise ConfigError(
                message("refused.no_number_of_ms", value=value), where=f"cost {name}"
            ) from None
    return Costs(**values)


def main(  # noqa: PLR0913 - typer reads the options from the signature
    *,
    layout: Annotated[str, typer.Option(help="Sizes of the axes: tp8,pp16,dp128.")] = "tp2,pp2,dp2",
    schedule: Annotated[
        ScheduleKind | None, typer.Option(help="Pipeline schedule; 1f1b where pp is above 1.")
    ] = None,
    microbatches: Annotated[int, typer.Option(help="Microbatches of a step.")] = 8,
    steps: Annotated[int, typer.Option(help="Steps.")] = 3,
    layers: Annotated[str, typer.Option(help="Layers of each stage, like 9,8,8,7.")] = "",
    segments: Annotated[
        int, typer.Option(help="Collectives of each inner axis (tp, cp, ep) in a pass.")
    ] = 1,
    dp_buckets: Annotated[int, typer.Option(help="Gradient buckets.")] = 1,
    overlap_dp: Annotated[bool, typer.Option(help="Reduce buckets during the backward.")] = False,
    jitter: Annotated[float, typer.Option(help="Variation of all work, 0.02 is 2 %.")] = 0.0,
    wire_jitter: Annotated[float, typer.Option(help="Variation of all transfers.")] = 0.0,
    cost: Annotated[
        list[str] | None, typer.Option(help="A duration in ms, like head=2.5; repeat it.")
    ] = None,
    fault: Annotated[
        list[str] | None,
        typer.Option(
            help="kind:key=value,…; repeat it. Kinds: " + ", ".join(FaultKind) + ".",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of all variation.")] = 0,
    sample_ms: Annotated[float, typer.Option(help="Devices are sampled so often; 0: never.")] = 0.0,
    ranks_per_host: Annotated[int, typer.Option(help="Ranks of one machine.")] = 8,
    out: Annotated[Path, typer.Option(help="Folder of runs.")] = Path("runs"),
    truth: Annotated[bool, typer.Option(help="Also simulate without each fault.")] = True,
    workers: _WorkersOption = 1,
    cluster: _ClusterOption = None,
) -> None:
    """Simulate a training job and write what a capture of it holds, with its truth.

    The path of the run goes to stdout. Nothing in it was measured, and every report says so.
    """
    mesh = parse_layout(layout)
    job = SyntheticJob(
        layout=mesh,
        schedule=schedule or (ScheduleKind.ONE_F_ONE_B if mesh.pp > 1 else ScheduleKind.NONE),
        microbatches=microbatches,
        steps=steps,
        layers=_integers(layers),
        costs=parse_costs(cost or []),
        segments=segments,
        dp_buckets=dp_buckets,
        overlap_dp=overlap_dp,
        jitter_cv=jitter,
        wire_cv=wire_jitter,
        seed=seed,
        ranks_per_host=ranks_per_host,
        sample_interval_ns=round(sample_ms * 1e6),
        faults=tuple(map(parse_fault, fault or [])),
    )
    path = _written(job, truth_of(job) if truth else None, out, executor_of(workers, cluster))
    rows = ", ".join(f"{name} {count:,}" for name, count in _rows(path))
    typer.echo(f"{mesh.world_size:,} ranks; rows: {rows}", err=True)
    typer.echo(str(path))
    typer.echo(f"Next: meshscope diagnose {path}", err=True)


def _written(job: SyntheticJob, truth: Truth | None, out: Path, executor: Executor) -> Path:
    """Write the run, in windows of steps where it is large and can be; return its path."""
    if job.layout.world_size > SEGMENT_RANKS and can_be_sharded(job):
        return write_sharded_run(job, truth, out, executor)
    return write_run(job, record(make_simulation(job)), truth, out)


def _rows(run: Path) -> Iterator[tuple[str, int]]:
    """Yield the tables of a run with their rows; those in segments are not read for it."""
    listed = read_list(run / FOLDER).tables
    if listed:
        yield from ((name, sum(file.rows for file in files)) for name, files in listed.items())
    else:
        yield from ((name, rows.num_rows) for name, rows in read_folder(run / FOLDER).items())


def _integers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(",") if part)
    except ValueError:
        raise ConfigError(message("refused.no_layers", text=text), where="layers") from None


def run() -> None:
    """Run the command; an error is one line on stderr and exit code 2."""
    try:
        typer.run(main)
    except (MeshscopeError, OSError) as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(USAGE_ERROR)


if __name__ == "__main__":
    run()
