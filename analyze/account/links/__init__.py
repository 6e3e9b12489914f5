"""Use of network ports, NVLink and PCIe over the steps: by phase, by axis, and what disturbs it."""
