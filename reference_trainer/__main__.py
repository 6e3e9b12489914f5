"""Command line of the reference trainer; torchrun starts one process per rank.

Example::

    torchrun --nproc_per_node 8 -m meshscope.reference_trainer --preset demo --out /tmp/demo
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from meshscope.probe.schema.errors import ConfigError, MeshscopeError
from meshscope.probe.schema.message import message

from .config.checks import require
from .config.config import TrainerConfig
from .config.elastic import check_job_size, job_size, warning_of_restarts
from .config.launcher import torchrun_environment
from .config.presets import file_text, load_config, preset_names, preset_text

_FAILURE = 1
_USAGE_ERROR = 2

_Out = Annotated[
    Path | None,
    typer.Option(help="Folder for losses.json and the ground truth of faults."),
]
_SimulatedRanks = Annotated[
    str | None,
    typer.Option(
        "--simulate-rank",
        metavar="RANK,...",
        help="Run a step of these ranks alone, without memory and without the others, and print "
        "what they hold.",
    ),
]


def main(  # noqa: PLR0913 - one parameter for each option
    preset: Annotated[
        str, typer.Option(help=f"A shipped configuration: {', '.join(preset_names())}.")
    ] = "tiny",
    config: Annotated[
        Path | None, typer.Option(help="A TOML file in place of the preset.", dir_okay=False)
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="SECTION.FIELD=VALUE", help="Override one setting."),
    ] = None,
    faults: Annotated[
        list[str] | None,
        typer.Option(
            "--fault",
            metavar="KIND:KEY=VALUE,...",
            help="Inject a fault, as slow_rank:rank=5,mode=sleep,delay_ms=40,window=4,seed=1.",
        ),
    ] = None,
    fault_file: Annotated[
        Path | None,
        typer.Option(
            "--faults", help="A TOML file with one [[faults]] table per fault.", dir_okay=False
        ),
    ] = None,
    out: _Out = None,
    dry_run: Annotated[  # noqa: FBT002 - typer reads options from the signature
        bool, typer.Option("--dry-run", help="Print the plan of the run and start nothing.")
    ] = False,
    simulated: _SimulatedRanks = None,
) -> None:
    """Train a small transformer over a mesh of ranks, with injected faults if wanted."""
    started = False
    try:
        os.environ.update(torchrun_environment(os.environ))
        text = preset_text(preset) if config is None else file_text(config)
        settings = load_config(
            text,
            overrides=overrides or (),
            faults=faults or (),
            fault_file=fault_file,
            where=preset if config is None else str(config),
            world_size=job_size(os.environ),
        )
        if dry_run:
            _print_plan(settings)
        if simulated is not None:
            _simulate(settings, simulated)
        elif not dry_run:
            settings.check_trainable()
            check_job_size(settings.layout, job_size(os.environ))
            _check_out(settings, out)
            started = True
            _train(settings, out)
    except MeshscopeError as error:
        _report(error, every_rank=started)
        code = _USAGE_ERROR if isinstance(error, ConfigError) else _FAILURE
        raise typer.Exit(code) from None


def _report(error: MeshscopeError, *, every_rank: bool) -> None:
    """Say what is wrong, on the first rank only where every rank finds the same."""
    rank = os.environ.get("RANK", os.environ.get("SLURM_PROCID", "0"))
    if rank == "0":
        sys.stderr.write(f"error: {error}\n")
    elif every_rank:
        sys.stderr.write(f"rank {rank}: error: {error}\n")


def _check_out(settings: TrainerConfig, out: Path | None) -> None:
    """Refuse a run that is asked for files and has no folder for them."""
    require(
        out is not None or not settings.memory.account,
        message("refused.needs_out"),
        where="memory.account",
        remedy=message("advice.add_out"),
    )


def _train(settings: TrainerConfig, out: Path | None) -> None:
    """Train this rank; torch is imported only now, so that help and errors come at once."""
    from .parallel.mesh import Place
    from .run.train import train

    place = Place.from_environment(os.environ)
    warning = warning_of_restarts(os.environ)
    if warning is not None and place.rank == 0:
        _print_line(warning)
    train(settings, place, out=out, emit=_print_line)


def _print_plan(settings: TrainerConfig) -> None:
    """Print what is known before the run starts."""
    from .planning.dry_run import dry_run_text

    sys.stdout.write(dry_run_text(settings))


def _simulate(settings: TrainerConfig, ranks: str) -> None:
    """Print what some ranks of the run would hold.

    Raises:
        ConfigError: There is no such rank, or the run cannot be simulated.
    """
    try:
        wanted = [int(rank) for rank in ranks.split(",")]
    except ValueError:
        raise ConfigError(
            message("refused.no_ranks", ranks=ranks),
            where="--simulate-rank",
            remedy=message("advice.simulated_ranks"),
        ) from None
    from .simulation.simulation import check_simulation, simulate_rank
    from .simulation.text import simulation_text

    for rank in wanted:
        check_simulation(settings, rank)
    for rank in wanted:
        _print_line(simulation_text(settings, simulate_rank(settings, rank)))


def _print_line(line: str) -> None:
    """Write one line now: a reader at the other end of a pipe follows the run."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


app = typer.Typer(add_completion=False, rich_markup_mode=None)
"""Without markup, which would swallow the brackets of a TOML table in a help text."""
app.command()(main)

if __name__ == "__main__":
    app()
