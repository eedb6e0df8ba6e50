"""Metropolis–Hastings: Algorithms 2 and 3, where chains start, how cold they run, and how they went."""
