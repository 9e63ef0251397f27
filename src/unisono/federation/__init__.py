"""The round loop and what happens to updates on their way."""
