"""The JSON twin and the tables of the page from summaries, under ``/api/v1``."""

from __future__ import annotations

import json
from typing import Any

from flask import Blueprint, Response

from meshscope.analyze.output.export.csv import harmless
from meshscope.analyze.output.export.summaries import slow_rank_table
from meshscope.analyze.output.json.summaries import summaries_to_json
from meshscope.probe.schema.errors import RunDirectoryError
from meshscope.probe.schema.message import message

from ..runs.store import RunStore
from ..runs.summarised_run import SummarisedRun


def register(api: Blueprint, store: RunStore) -> None:
    """Add the routes."""

    @api.get("/runs/<run_id>/summary.json")
    def summary(run_id: str) -> Response:
        return Response(
            json.dumps(summary_json(_run(store, run_id)), allow_nan=False),
            mimetype="application/json",
        )

    @api.get("/runs/<run_id>/summary/<any(steps, blocks, slow_ranks):name>.csv")
    def summary_table(run_id: str, name: str) -> Response:
        run = _run(store, run_id)
        frame = (
            slow_rank_table(run.answer)
            if name == "slow_ranks"
            else getattr(run.blocks, name).to_pandas()
        )
        answer = Response(harmless(frame).to_csv(index=False), mimetype="text/csv")
        answer.headers["Content-Disposition"] = f'attachment; filename="summary-{name}.csv"'
        return answer


def summary_json(run: SummarisedRun) -> dict[str, Any]:
    """Return what the page says: the first answer, the records that were not read, and the length of each step."""
    # Where the folder lies is nobody's business in a browser.
    answer = summaries_to_json(run.made, run.answer) | {"folder": run.made.folder.name}
    return {
        "run_id": run.run_id,
        "layout": run.layout,
        "source": "summaries",
        "records_not_read": run.records,
        "trend": run.trend(),
        **answer,
    }


def _run(store: RunStore, run_id: str) -> SummarisedRun:
    """Return a run from its summaries.

    Raises:
        RunDirectoryError: It has none, or is small enough to be read whole.
    """
    found = store.summarised(run_id)
    if found is None:
        raise RunDirectoryError(
            message("refused.not_from_summaries"),
            where=run_id[:128],
            remedy=message("advice.overview_json"),
        )
    return found
