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

from meshscope.probe.schema.errors import ConfigError

from .config import TrainerConfig
from .presets import file_text, load_config, preset_names, preset_text

_USAGE_ERROR = 2


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
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for losses.json and the ground truth of faults.", file_okay=False
        ),
    ] = None,
    dry_run: Annotated[  # noqa: FBT002 - typer reads options from the signature
        bool, typer.Option("--dry-run", help="Print the plan of the run and start nothing.")
    ] = False,
) -> None:
    """Train a small transformer over a mesh of ranks, with injected faults if wanted."""
    try:
        text = preset_text(preset) if config is None else file_text(config)
        where = preset if config is None else str(config)
        settings = load_config(
            text,
            overrides=overrides or (),
            faults=faults or (),
            fault_file=fault_file,
            where=where,
        )
        if dry_run:
            _print_plan(settings)
        else:
            _train(settings, out)
    except ConfigError as error:
        # Every rank fails in the same way; one message is enough.
        if os.environ.get("RANK", "0") == "0":
            sys.stderr.write(f"error: {error}\n")
        raise typer.Exit(_USAGE_ERROR) from None


def _train(settings: TrainerConfig, out: Path | None) -> None:
    """Train this rank; torch is imported only now, so that help and errors come at once."""
    from .mesh import Place
    from .train import train

    train(settings, Place.from_environment(), out=out, emit=_print_line)


def _print_plan(settings: TrainerConfig) -> None:
    """Print what is known before the run starts."""
    from .dry_run import dry_run_text

    sys.stdout.write(dry_run_text(settings))


def _print_line(line: str) -> None:
    """Write one line now: a reader at the other end of a pipe follows the run."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    typer.run(main)
