"""All measurements, one after the other: ``make bench``."""

from benchmarks import cfcl, clients, engine, startup, views

for part in (startup, engine, clients, views, cfcl):
    part.report()
    print()
