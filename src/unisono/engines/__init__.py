"""Engines, which run the clients of a federation."""
