"""What the numbers of the driver's fault messages (Xids) mean.

Source: NVIDIA, *XID Errors* (docs.nvidia.com/deploy/xid-errors), its list of Xids with
their usual causes. A number that is not here is reported as it is.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class FaultClass(StrEnum):
    """Where to look for the cause of a fault, the most serious first."""

    BUS = "bus"
    MEMORY = "memory"
    FIRMWARE = "firmware"
    LINK = "link"
    UNKNOWN = "unknown"
    WEAR = "wear"
    """Rows of memory that go bad without harm so far."""
    PROGRAM = "program"


class Xid(NamedTuple):
    """One number."""

    meaning: str
    fault: FaultClass


_LINKS = {number: Xid("an error of NVLink", FaultClass.LINK) for number in range(144, 151)}
XIDS: dict[int, Xid] = {
    13: Xid("an exception of the graphics engine", FaultClass.PROGRAM),
    31: Xid("a memory page fault, an access to an illegal address", FaultClass.PROGRAM),
    32: Xid("an invalid or damaged command buffer", FaultClass.BUS),
    43: Xid("a kernel that was stopped after an error of the program", FaultClass.PROGRAM),
    45: Xid("work that was cleared away, after an earlier fault or a kill", FaultClass.PROGRAM),
    48: Xid("an uncorrected memory error", FaultClass.MEMORY),
    61: Xid("a halt of the device's microcontroller", FaultClass.FIRMWARE),
    62: Xid("a halt of the device's microcontroller", FaultClass.FIRMWARE),
    63: Xid("a row of memory that was marked for replacement", FaultClass.WEAR),
    64: Xid("a row of memory that could not be marked for replacement", FaultClass.MEMORY),
    69: Xid("an error of the graphics engine's class", FaultClass.PROGRAM),
    74: Xid("an error of NVLink", FaultClass.LINK),
    79: Xid("a device that fell off the bus", FaultClass.BUS),
    92: Xid("a high rate of corrected memory errors", FaultClass.WEAR),
    94: Xid("an uncorrected memory error that was contained", FaultClass.MEMORY),
    95: Xid("an uncorrected memory error that was not contained", FaultClass.MEMORY),
    109: Xid("a switch of contexts that did not end in time", FaultClass.FIRMWARE),
    119: Xid("a system processor (GSP) that does not answer", FaultClass.FIRMWARE),
    120: Xid("an error of the system processor (GSP)", FaultClass.FIRMWARE),
    121: Xid("an error of the chip-to-chip link", FaultClass.LINK),
    140: Xid("a memory error from which the device did not recover", FaultClass.MEMORY),
    **_LINKS,
}


def xid(number: int) -> Xid:
    """Return what a number means, also of one that is not in the list."""
    return XIDS.get(number, Xid("a fault that is not in the list", FaultClass.UNKNOWN))
