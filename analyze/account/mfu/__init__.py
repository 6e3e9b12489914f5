"""MFU and HFU: what they depend on, and numbers that cannot be true."""
