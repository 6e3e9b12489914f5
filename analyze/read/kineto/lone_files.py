"""A file that is alone and names no world size, but communicates: other ranks are missing.

Taken for the only rank of its job, all of its communication would be time on the wire, for nobody could be waited
for. How many ranks there are is unknown; what it waited for is not in the capture.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from meshscope.probe.schema.terms import KernelCategory

UNKNOWN_RANKS = 0
"""World size of a job of which nothing says how many ranks it has."""


def lacks_peers(kernels: pa.Table) -> bool:
    """Return whether the only rank of a capture communicates with others, which are not in it.

    One that computes on several devices may do so among these.

    Args:
        kernels: The device activities of a rank of which no file names the world size: category, device.
    """
    category = kernels["category"].cast(pa.string())
    computes = pc.equal(category, KernelCategory.COMPUTE.value)
    communicates = pc.any(pc.equal(category, KernelCategory.COMMUNICATION.value)).as_py()
    return bool(communicates) and len(pc.unique(kernels["device"].filter(computes))) <= 1
