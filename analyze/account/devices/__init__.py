"""The condition of the devices: clocks, limits, faults."""
