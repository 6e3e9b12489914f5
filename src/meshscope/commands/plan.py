"""The verb that says what a job needs before it runs."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from meshscope.probe.schema.terms import ScheduleKind

from .open_capture import next_command
from .options import FormatOption, named_path
from .output import Format, show_document

ModelPath = Annotated[
    Path,
    typer.Argument(
        metavar="MODEL",
        parser=named_path,
        help="Our TOML, a Hugging Face config.json, or Megatron's arguments (JSON, YAML).",
    ),
]
Tp = Annotated[int | None, typer.Option(min=1, help="Tensor-parallel ranks.")]
Pp = Annotated[int | None, typer.Option(min=1, help="Pipeline ranks.")]
Dp = Annotated[int | None, typer.Option(min=1, help="Replicas.")]
Cp = Annotated[int | None, typer.Option(min=1, help="Context-parallel ranks.")]
Ep = Annotated[int | None, typer.Option(min=1, help="Expert-parallel ranks.")]
Etp = Annotated[int | None, typer.Option(min=1, help="Tensor ranks of an expert; tp if not given.")]
Vpp = Annotated[int | None, typer.Option(min=1, help="Chunks of a pipeline rank.")]
Microbatches = Annotated[
    int | None, typer.Option(min=1, help="Microbatches of a step and replica.")
]
MicrobatchSize = Annotated[int | None, typer.Option(min=1, help="Sequences of a microbatch.")]
SeqLen = Annotated[int | None, typer.Option(min=1, help="Tokens of a sequence.")]
Layers = Annotated[
    str | None,
    typer.Option(metavar="N", help="Cut the model to N layers, or give counts by stage: 8,8,8,6."),
]
_ORDERS = [
    str(kind) for kind in ScheduleKind if kind not in (ScheduleKind.NONE, ScheduleKind.OTHER)
]
Schedule = Annotated[str | None, typer.Option(help=f"{', '.join(_ORDERS[:-1])} or {_ORDERS[-1]}.")]
Zero = Annotated[
    int | None,
    typer.Option(min=0, max=3, help="Replicas share: 1 optimizer, 2 and gradients, 3 and weights."),
]
RecomputeOption = Annotated[str | None, typer.Option(help="none, selective or full.")]
SequenceParallel = Annotated[
    bool | None,
    typer.Option(
        "--sequence-parallel/--no-sequence-parallel",
        help="Tensor-parallel ranks share norms and residual stream; on by default.",
    ),
]
Tied = Annotated[
    bool | None, typer.Option("--tied/--untied", help="Output head and embedding are one.")
]
FusedCrossEntropy = Annotated[
    bool | None,
    typer.Option(
        "--fused-cross-entropy/--no-fused-cross-entropy",
        help="The loss makes no fp32 copy of the logits.",
    ),
]
GradientDtype = Annotated[str | None, typer.Option(help="Accumulated gradients: bf16 or fp32.")]
MomentDtype = Annotated[str | None, typer.Option(help="Adam's moments: bf16 or fp32.")]
MemoryCap = Annotated[
    str | None, typer.Option(metavar="BYTES", help="Memory of a device, such as 80e9 or 80GiB.")
]
Explain = Annotated[
    bool, typer.Option("--explain", help="Show every term with formula and source.")
]


def plan(  # noqa: PLR0913 - the options of a verb
    model: ModelPath,
    tp: Tp = None,
    pp: Pp = None,
    dp: Dp = None,
    cp: Cp = None,
    ep: Ep = None,
    etp: Etp = None,
    vpp: Vpp = None,
    microbatches: Microbatches = None,
    microbatch_size: MicrobatchSize = None,
    seq_len: SeqLen = None,
    layers: Layers = None,
    schedule: Schedule = None,
    zero: Zero = None,
    recompute: RecomputeOption = None,
    sequence_parallel: SequenceParallel = None,
    tied: Tied = None,
    fused_cross_entropy: FusedCrossEntropy = None,
    gradient_dtype: GradientDtype = None,
    moment_dtype: MomentDtype = None,
    memory: MemoryCap = None,
    explain: Explain = False,
    output: FormatOption = Format.TEXT,
) -> None:
    """Predict what a model on a mesh holds, computes and sends: by stage, before anything runs."""
    stated = dict(locals())
    from meshscope.analyze.formulas.planning import PlanSettings, make_job_plan, planned_job
    from meshscope.analyze.formulas.planning.cap import check_cap
    from meshscope.analyze.output.json.plan import plan_to_json
    from meshscope.analyze.output.text.plan import plan_document

    others = ("model", "memory", "explain", "output")
    settings = PlanSettings(**{k: v for k, v in stated.items() if k not in others})
    found = make_job_plan(*planned_job(model, settings))
    result = plan_to_json(found, explain=explain)
    if memory is not None:
        result["memory"] = check_cap(found, memory)
    following = next_command("plan", model, "--explain")
    if explain:
        following = next_command("run", "--", "torchrun", "train.py")
    show_document(output, lambda: result, partial(plan_document, result), following)
