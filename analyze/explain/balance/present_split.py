"""The layers of each stage today: as stated, recorded, or as costs and model tell, kind by kind.

Stages between the ends with different mixes separate the kinds: their passes take
``n_dense d + n_expert e``, solved by least squares without negative costs. Dense layers usually lie
beside the embedding alone; then their FLOPs give the ratio, and that is said.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from meshscope.probe.schema.errors import ConfigError
from meshscope.probe.schema.model import ModelDescription
from meshscope.probe.schema.model.counts import has_experts, layer_flops

from ...align.topology.stated_job import ARGUMENTS
from ...formulas.planning.source import stated_split
from ...tables.arrays import BoolArray, FloatArray
from ...wording.message import Message, message
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


_LEAST_BETWEEN = 3
"""Stages between the ends, of which two kinds leave one to check."""
_DIGITS = 9
"""Coarser than the rounding of sums of weights near 1, finer than any weight."""
BY_FLOPS = message("assumed.layers_by_flops")
MEASURED = message("assumed.layers_measured")


def layer_weights(
    model: object, cost_ns: FloatArray, now: Sequence[int]
) -> tuple[FloatArray, Message | None]:
    """Return what each layer costs in units of the most frequent kind, and how that is known.

    Args:
        model: The description; anything else is taken as layers that are alike.
        cost_ns: What the passes of each stage take, ``(stage,)``.
        now: Layers of the stages in model order.
    """
    layers = sum(now)
    ones = np.ones(layers)
    if not isinstance(model, ModelDescription) or model.num_layers != layers or not model.experts:
        return ones, None
    dense = np.array([not has_experts(model, layer) for layer in range(layers)])
    if dense.all() or not dense.any():
        return ones, None
    measured = _measured(dense, cost_ns, now)
    if measured is not None:
        costs, how = measured, MEASURED
    else:
        flops = [
            layer_flops(model, int(np.flatnonzero(dense == kind)[0])) for kind in (True, False)
        ]
        costs, how = np.array(flops, np.float64), BY_FLOPS
    usual = costs[0] if 2 * dense.sum() > layers else costs[1]
    return np.where(dense, costs[0], costs[1]) / usual, how


def weights_of_stages(weights: FloatArray, split: Sequence[int]) -> FloatArray:
    """Return the sum of the weights of every stage's layers, ``(stage,)``.

    Rounded: stages that keep their layers are compared for equality.
    """
    ends = np.cumsum([0, *split])
    total = np.append(0.0, np.cumsum(weights))
    return np.asarray(np.round(total[ends[1:]] - total[ends[:-1]], _DIGITS))


def _measured(dense: BoolArray, cost_ns: FloatArray, now: Sequence[int]) -> FloatArray | None:
    """Return the costs of a dense and another layer, None where the stages do not separate them."""
    if len(now) - 2 < _LEAST_BETWEEN:
        return None
    from scipy.optimize import nnls

    counts = np.stack(
        [weights_of_stages(kind.astype(np.float64), now)[1:-1] for kind in (dense, ~dense)], axis=1
    )
    if np.linalg.matrix_rank(counts) < 2:
        return None
    # Relative errors: a stage of more layers is not worth more than another.
    scale = cost_ns[1:-1, None]
    found, _ = nnls(counts / scale, np.ones(len(counts)))
    return np.asarray(found, np.float64) if (found > 0).all() else None
