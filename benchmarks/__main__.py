"""All measurements, one after the other: ``make bench``."""

from benchmarks import clients, engine, startup, views

for part in (startup, engine, clients, views):
    part.report()
    print()
