"""Backtests: what policies would have cost on a data set's own rows, as a job or at the command line."""
