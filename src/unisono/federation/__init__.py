"""The round loop, and the processing of updates between clients and server."""
