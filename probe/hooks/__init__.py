"""The places where the probe listens, one module each."""
