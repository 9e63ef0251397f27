"""Accounting and anonymity."""
