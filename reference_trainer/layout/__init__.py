"""Orders of passes and members of groups: pure integers."""
