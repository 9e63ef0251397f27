"""Long tests of reliability: ``make faults``, ``make chaos``, ``make fuzz``, ``make soak``. The test suite runs a sample of each."""
