"""Uncertain objectives: shortest path and knapsack, whose costs are polynomials of the context."""
