"""Every name of torch and Python that the probe leans on and that may be missing."""
