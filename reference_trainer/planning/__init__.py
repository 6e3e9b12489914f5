"""Memory, bubble and checkpoint of a run by formulas, before it starts."""
