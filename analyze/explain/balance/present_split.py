"""Which layers each stage has today: as stated, recorded, or as costs and model tell."""

from __future__ import annotations

from collections.abc import Sequence

from meshscope.probe.schema.errors import ConfigError

from ...align.topology.stated_job import ARGUMENTS
from ...formulas.planning.source import stated_split
from ...wording.message import message
from ..memory.expected import stated_settings
from ..run_account import Account
from ..whatif.layers import inferred_layers
from ..whatif.redesign import PresentPipeline


def present_split(
    account: Account, present: PresentPipeline, stated: Sequence[int] | None
) -> tuple[int, ...]:
    """Return the layers of every stage in model order.

    Args:
        account: The measured run.
        present: Its pipeline.
        stated: What the user states; None: nothing.

    Raises:
        ConfigError: What is stated does not fit the run, or nothing tells the layers.
    """
    total = account.trace.run.get("num_layers")
    stages = present.pipeline.ranks * present.pipeline.chunks
    if stated is None:
        stated = _recorded_split(account, stages)
    if stated is not None:
        fits = len(stated) == stages and min(stated) >= 0 and sum(stated) > 0
        if not fits or (isinstance(total, int) and sum(stated) != total):
            raise ConfigError(
                message("refused.split_of_stages", split=",".join(map(str, stated)), stages=stages),
                where="--layers",
                remedy=message("advice.counts_with_sum", stages=stages, layers=total)
                if isinstance(total, int)
                else message("advice.counts_alone", stages=stages),
            )
        if present.pipeline.chunks == 1 and min([1, *stated[1:-1]]) < 1:
            empty = 1 + list(stated[1:-1]).index(0)
            raise ConfigError(
                message("refused.stage_without_layers", empty=empty),
                where="--layers",
                remedy=message("advice.layers_of_every_stage"),
            )
        return tuple(stated)
    found = None
    if isinstance(total, int) and total > 0:
        found = inferred_layers(present.centre_ns.sum(axis=0), total)
    if found is None:
        raise ConfigError(
            message("refused.layers_unknown"),
            where=str(account.trace.path),
            remedy=message("advice.state_split"),
        )
    return tuple(int(count) for count in found)


def _recorded_split(account: Account, stages: int) -> tuple[int, ...] | None:
    """Return the split that the capture states, None where it states none.

    Megatron's arguments always do: without a layout or ends of their own, stages are equal.
    """
    run, layout = account.trace.run, account.trace.layout
    total = run.get("num_layers")
    settings = stated_settings(run)
    if layout is None or not isinstance(total, int) or total < 1:
        by_settings = settings.get("layers")
        return (
            tuple(by_settings)
            if isinstance(by_settings, list) and len(by_settings) == stages
            else None
        )
    found = stated_split(settings, total, layout)
    if not found and run.get(ARGUMENTS) and total % stages == 0:
        found = (total // stages,) * stages
    return found if len(found) == stages else None
