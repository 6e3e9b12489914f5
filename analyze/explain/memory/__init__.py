"""Memory that each stage should hold, beside what it held, and who runs out first."""
