"""One time and one mesh for all ranks: clocks, axes, steps, matched communication."""
