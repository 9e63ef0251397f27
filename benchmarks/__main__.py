"""All measurements, one after the other: ``make bench``."""

from benchmarks import cfcl, clients, engine, frameworks, micro_batch, orchestra, precision, startup, views

for part in (startup, engine, frameworks, clients, views, orchestra, cfcl, micro_batch, precision):
    part.report()
    print()
