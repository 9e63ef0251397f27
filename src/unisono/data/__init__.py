"""Sources, partitions, shifts and views of samples."""
