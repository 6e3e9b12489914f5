"""Where the time and the memory of every rank went: exact accounts, no causes."""
