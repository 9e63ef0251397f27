"""Backbones, heads and named networks."""
