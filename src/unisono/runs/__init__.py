"""The run directory: layout, checkpoints, exports."""
