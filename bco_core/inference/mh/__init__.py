"""Metropolis–Hastings: Algorithms 2 and 3, starts of chains, their temperature and diagnostics."""
