"""Probes and scores."""
