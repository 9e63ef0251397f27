"""A real federation: its directories and keys, the processes that keep it going, and what runs on either side."""
