"""Studies: a grid of runs, its table and figure, and comparisons of runs."""
