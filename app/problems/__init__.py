"""Decision problems as planners describe them."""
