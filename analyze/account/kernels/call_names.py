"""What the calls into the runtime or driver of a device do to the thread that makes them, by name."""

from __future__ import annotations

import re

WAITING_CALL = re.compile(
    r"synchroni[sz]e|\b(?:cu|cuda|hip)Memcpy(?:HtoD|DtoH|WithStream)?(?:_v\d+)?(?:_ptds(?:_v\d+)?)?$",
    re.IGNORECASE,
)
"""Names of calls that return when the device is done; Nsight adds a version to them."""
ALLOCATOR_CALL = re.compile(
    r"\b(?:cuda|hip|cu|aclrt|musa|xpu)_?"
    r"(?:Malloc|Free|Mem(?:Alloc|Free|Create|Map|Unmap|Release|SetAccess|AddressReserve|AddressFree)|"
    r"(?:Mem)?Host(?:Alloc|Malloc|Free|Register|Unregister|GetDevicePointer)|MemHost\w+)",
    re.IGNORECASE,
)
"""Names of calls that take memory from the driver or give it back: most of them wait for the device,
and all of them for the driver's lock."""
EVENT_WAIT_CALL = re.compile(r"StreamWait(?:Event|Value)", re.IGNORECASE)
"""Names of calls that make a stream wait on the device; they return at once."""
