"""What works here, what does not and why, and what the probe costs a job on this machine."""
