"""Pure loss functions."""
