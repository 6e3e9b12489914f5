"""The training run of one rank, its data and its reports."""
