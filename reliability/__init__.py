"""Long tests of reliability: ``make faults``, ``make chaos``, ``make fuzz``, ``make soak``; the suite runs a sample of each."""
