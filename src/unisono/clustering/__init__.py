"""Pure clustering functions."""
