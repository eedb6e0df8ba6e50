"""Real histories: their data, the runs and the report."""
