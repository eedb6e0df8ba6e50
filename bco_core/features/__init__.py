"""Features: the columns that a predictor computes from a context."""
