"""What a predictor sees of a context."""
