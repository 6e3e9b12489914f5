"""What a test asserts of the recorded runs of a small job."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from meshscope.probe.schema.message import message

if TYPE_CHECKING:
    from meshscope.analyze.explain.run_account import Account
    from meshscope.analyze.gate.facts import Baseline
    from meshscope.analyze.gate.loaded import LoadedRun
    from meshscope.analyze.tables.results import Diagnosis

Bound = float | Mapping[str, float]
Note = Callable[[str], None]

_MOST_SHOWN = 5


@dataclass(frozen=True)
class RecordedRuns:
    """One job, run once or several times under the probe; what is asserted holds for every run."""

    paths: tuple[Path, ...]
    """Run directories, in the order of the runs."""
    margin: float | None = None
    topology: Path | None = None
    note: Note = field(default=lambda line: None, repr=False)

    @cached_property
    def accounts(self) -> tuple[Account, ...]:
        """Return the account of every run.

        Raises:
            MeshscopeError: A run cannot be read, or holds no step.
        """
        from meshscope.commands.open_capture import open_trace

        runs = self.paths[0].parent
        return tuple(open_trace(path, self.topology, runs).measured() for path in self.paths)

    @cached_property
    def diagnoses(self) -> tuple[Diagnosis, ...]:
        """Return the diagnosis of every run, the same as ``meshscope diagnose`` gives."""
        from meshscope.analyze.findings.diagnosis import diagnosis_of

        return tuple(map(diagnosis_of, self.accounts))

    @cached_property
    def loaded(self) -> tuple[LoadedRun, ...]:
        """Return the runs as a gate compares them."""
        from meshscope.analyze.gate.captures import run_of

        return tuple(map(run_of, self.accounts, [path.name for path in self.paths]))

    def assert_budget(self, **bounds: Bound) -> None:
        """Assert absolute bounds: ``assert_budget(bubble_frac=0.12, mfu={"min": 0.4})``.

        A number is the most that is allowed; of what should be high, such as ``mfu``, the least.
        A metric that the capture does not tell fails.

        Raises:
            AssertionError: A bound is broken, or cannot be checked.
            ConfigError: There is no such metric, or the bound means nothing.
        """
        __tracebackhide__ = True
        from meshscope.analyze.gate.budgets import bounded, check

        budgets = tuple(bounded(name, bound) for name, bound in bounds.items())
        broken = []
        for path, result in zip(self.paths, self.diagnoses, strict=True):
            for verdict in check(result, budgets):
                self.note(f"{path.name}: {verdict.sentence()}")
                if not verdict.passed:
                    broken.append(f"{verdict.sentence()}\n  run: {path}")
        _fail_with(broken)

    def assert_collectives(self, **axes: Mapping[str, int]) -> None:
        """Assert how many collectives each rank runs in a step: ``tp={"all_reduce": 8}``.

        The kinds of an axis are complete: one that is not named must not occur.

        Raises:
            AssertionError: A rank runs more or fewer.
            ConfigError: There is no such axis or kind of collective.
        """
        __tracebackhide__ = True
        wrong = []
        for axis, wanted in axes.items():
            _check_names(axis, wanted)
            for path, account in zip(self.paths, self.accounts, strict=True):
                found = list(_other_counts(account, axis, wanted))
                state = "FAIL" if found else "pass"
                amounts = ", ".join(f"{kind} = {count}" for kind, count in wanted.items())
                self.note(f"{path.name}: {state:<8} {axis} collectives: {amounts or 'none'}")
                wrong += [f"{line}\n  run: {path}" for line in found]
        _fail_with(wrong)

    def assert_no_slower_than(
        self,
        base: RecordedRuns | Path | str,
        *,
        margin: float | None = None,
        allow: Sequence[str] = (),
    ) -> None:
        """Assert that ``meshscope gate --baseline`` passes these runs, or finds them improved.

        Args:
            base: Other runs, or a file of ``meshscope gate baseline``.
            margin: Accepted loss as a share of the step.
            allow: Parts of the setup that may differ.

        Raises:
            AssertionError: Slower, more operations, not decided, or not comparable.
            MeshscopeError: A side cannot be read.
        """
        __tracebackhide__ = True
        from meshscope.analyze.gate.compare import compare
        from meshscope.analyze.gate.json_forms import EXIT_CODES, to_json
        from meshscope.analyze.output.render import to_plain
        from meshscope.analyze.output.text.gate import gate_document

        accepted = self.margin if margin is None else margin
        baseline = base.baseline() if isinstance(base, RecordedRuns) else _load(Path(base))
        result = compare(baseline, self.loaded, margin=accepted, allowed=frozenset(allow))
        found = to_json(result)
        self.note(found["why"])
        if EXIT_CODES[result.verdict]:
            raise AssertionError(to_plain(gate_document(found)))

    def baseline(self) -> Baseline:
        """Return these runs as the baseline of others."""
        from meshscope.analyze.gate.loaded import baseline_of

        return baseline_of(self.loaded)


def _load(path: Path) -> Baseline:
    from meshscope.analyze.gate.baseline_file import load_baseline

    return load_baseline(path)


def _check_names(axis: str, wanted: Mapping[str, int]) -> None:
    """Refuse an axis or a kind that there is not: it would be counted as 0."""
    from difflib import get_close_matches

    from meshscope.probe.schema.errors import ConfigError
    from meshscope.probe.schema.terms import Axis, CollectiveKind

    for what, known, names in (
        ("axis", [one.value for one in Axis], [axis]),
        ("collective", [one.value for one in CollectiveKind], list(wanted)),
    ):
        for name in names:
            if name not in known:
                near = get_close_matches(name, known, 1, 0.5)
                remedy = (
                    message("advice.meant", name=near[0])
                    if near
                    else message("advice.use_one_of", known=known)
                )
                raise ConfigError(
                    message("refused.no_such_name", name=name, what=what),
                    where="assert_collectives",
                    remedy=remedy,
                )


def _other_counts(account: Account, axis: str, wanted: Mapping[str, int]) -> list[str]:
    """Return where ranks run more or fewer collectives of an axis than wanted, one line a count."""
    from meshscope.analyze.gate.counts import collectives_by_rank

    table = collectives_by_rank(account, axis)
    found = table.pivot(index="rank", columns="kind", values="count")
    found = found.reindex(account.windows.ranks.tolist()).fillna(0).astype(int)
    wrong = []
    for kind in sorted({*wanted, *found.columns}):
        counts = found[kind] if kind in found else found.iloc[:, :0].sum(axis=1).astype(int)
        for count, ranks in counts.groupby(counts).groups.items():
            if count != wanted.get(kind, 0):
                who = [str(rank) for rank in ranks]
                more = f" and {len(who) - _MOST_SHOWN} more" if len(who) > _MOST_SHOWN else ""
                wrong.append(
                    f"{axis} {kind}: {count} per step on rank {', '.join(who[:_MOST_SHOWN])}{more}, "
                    f"expected {wanted.get(kind, 0)}"
                )
    return wrong


def _fail_with(lines: Sequence[str]) -> None:
    __tracebackhide__ = True
    if lines:
        raise AssertionError("\n".join(lines))
