"""What the devices did: kernels, the parts of the step they belong to, and idle time."""
