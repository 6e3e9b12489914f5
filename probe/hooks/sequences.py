"""What the training code tells of the sequences of its microbatches."""

from __future__ import annotations

from collections.abc import Iterable
from operator import index
from typing import Any, Protocol

from ..clock import now_ns
from .base import NO_SPANS, Capture


class HostNumbers(Protocol):
    """A one-dimensional array or tensor of whole numbers in host memory."""

    def tolist(self) -> Any:
        """Return them as a list."""


Lengths = Iterable[int] | HostNumbers


class SequenceStatements:
    """Records how long the sequences of each microbatch are, in the order in which they are described."""

    def __init__(self, capture: Capture) -> None:
        self.source = capture.source("sequences")
        self._capture = capture
        self._step = self._next = 0

    def add(self, lengths: Lengths, microbatch: int | None) -> None:
        """Record one microbatch; see ``meshscope.probe.sequences``."""
        if not self.source.on:
            return
        entered_ns, capture = now_ns(), self._capture
        capture.states_sequences = True
        try:
            recorder = capture.recorder
            if recorder.step != self._step:
                self._step, self._next = recorder.step, 0
            number = self._next if microbatch is None else int(microbatch)
            self._next = number + 1
            if capture.level != NO_SPANS:
                recorder.record_microbatch(number, *work_of(lengths))
            capture.meter.add_facts_time(now_ns() - entered_ns)
        except Exception as error:  # noqa: BLE001 - counted; training goes on
            self.source.failed(error)


def work_of(lengths: Lengths) -> tuple[int, int]:
    """Return the tokens of some sequences, and the sum of the squares of their lengths.

    Raises:
        ValueError: They lie on a device, which the training would wait for, or one is negative.
        TypeError: They are no whole numbers.
    """
    # A device is a word in numpy and an object with a type in torch; a list has none.
    place = getattr(getattr(lengths, "device", None), "type", "cpu")
    if place != "cpu":
        raise ValueError(
            f"lengths of sequences are on a {place} device: give those that the batch was made of, on the host"
        )
    # Numbers of Python add up faster than those of an array, and do not overflow.
    numbers: Any = lengths.tolist() if hasattr(lengths, "tolist") else lengths
    tokens = squares = 0
    for number in numbers:
        length = index(number)
        if length < 0:
            raise ValueError(f"a sequence has {length} tokens")
        tokens += length
        squares += length * length
    return tokens, squares
