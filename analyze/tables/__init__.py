"""A capture in memory and on disk, and the arrays, intervals and results that every layer works on."""
