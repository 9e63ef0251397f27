"""All measurements, one after the other: ``make bench``."""

from benchmarks import cfcl, clients, engine, frameworks, micro_batch, orchestra, precision, secure_sum, startup, views

for part in (startup, engine, frameworks, clients, views, orchestra, cfcl, micro_batch, precision, secure_sum):
    part.report()
    print()
