"""A real federation: its directories and keys, its processes, and the code of server and clients."""
