"""One file per method; they never import each other."""
