"""Studies: a grid of runs, the table and the figure it makes, and runs side by side."""
