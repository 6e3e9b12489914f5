"""The exact account: every instant of every step has one class."""
