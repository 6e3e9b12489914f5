"""What a run multiplies for a token, or in a step: of the steps that were observed, and of the passes that ran."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .pass_work import PassKind, PassRows
from .step_work import StepWork, observed_fields

_STEPS = 2
"""Steps that are observed. Where they differ, two are no mean of a run."""
_FIRST_STEP = 1
"""The first step has what is done once: sanity checks, lazy modules, compilation."""
_LAST_STEP = 6
"""From the step after it on a job far over its budget is recorded in windows."""
_MOST_LATE = 8
"""Later steps of which parts are observed, as they have passes of a kind that was not."""
_SAME = 0.001
"""What changed by less is not told again."""
_TELLS = 16
"""What is known is told again after so much of the run, as a fraction of it: passes may come in few steps."""

Learn = Callable[[Mapping[str, Any]], None]


class RunWork:
    """Keeps what steps multiplied and what passes ran; tells what a token of the run multiplies on average.

    Attributes:
        is_blind: A module is compiled: nothing is to be observed any more, nor may it be while that compiles.
        doubts: What the model's modules leave open until they were observed, as fields.
        last: Kind and rows of the outermost call that was counted last.

    Args:
        learn: Told the result, and what changes it: in a run without passes of other kinds, once.
    """

    def __init__(self, learn: Learn) -> None:
        self._learn = learn
        self._done: list[StepWork] = []
        self._late: list[StepWork] = []
        self._kinds: set[PassKind] = set()
        self._rows = PassRows()
        self._told: dict[str, Any] = {}
        self._tells_at = 0
        self.is_blind = False
        self.doubts: Mapping[str, Any] = {}
        self.last: tuple[PassKind, float] = ((0, 0, False), 0.0)

    @property
    def has_tokens(self) -> bool:
        """Tell whether forward calls of training were given token ids."""
        return self._rows.tokens > 0

    def wants(self, step: int) -> bool:
        """Tell whether a step is to be observed."""
        is_early = _FIRST_STEP <= step <= _LAST_STEP
        return is_early and len(self._done) < _STEPS and not self.is_blind

    def count_tokens(self, tokens: int) -> None:
        """Count the tokens of a forward call of training."""
        self._rows.tokens += tokens

    def count_pass(self, module: Any, args: Any, kwargs: Any, *, grads: bool) -> bool:
        """Count the rows of an outermost call.

        Returns:
            Whether it is the first of its kind after the steps that were observed.
        """
        self.last = kind, _ = self._rows.add(module, args, kwargs, grads=grads)
        if len(self._done) < _STEPS or kind in self._kinds or not kind[0]:
            return False
        return len(self._late) < _MOST_LATE and not self.is_blind

    def take(self, work: StepWork, *, is_late: bool) -> None:
        """Take what was observed of a step."""
        (self._late if is_late else self._done).append(work)
        self._kinds.update(work.passes)

    def count_step(self, step: int) -> None:
        """Count a step that ended; tell what is known now if it is other than before.

        Args:
            step: The step that begins.
        """
        rows = self._rows
        if step <= _FIRST_STEP:
            rows.forget()
            return
        rows.steps += 1
        if step < self._tells_at:
            return
        beside = rows.forward_rows()
        if len(self._done) == _STEPS:
            found = {**observed_fields(self._done, rows.all(), self._late), **beside}
        elif step > _LAST_STEP and beside:
            found = {**self.doubts, **beside}
        else:
            return
        self._tells_at = step + max(1, step // _TELLS)
        if _is_other(found, self._told):
            # What is told later is merged with what was told before.
            gone = {name: type(value)() for name, value in self._told.items() if name not in found}
            self._told = found
            self._learn({"observed": {**gone, **found}})


def _is_other(found: Mapping[str, Any], told: Mapping[str, Any]) -> bool:
    """Tell whether fields say something else than those that were told."""
    return found.keys() != told.keys() or any(
        abs(value - told[name]) > _SAME * abs(value) for name, value in found.items()
    )
