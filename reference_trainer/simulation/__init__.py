"""One rank of a job too large for this machine."""
