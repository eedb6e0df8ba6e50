"""Benchmarks that ``bco bench`` runs; results worth keeping are under ``benchmarks/results``."""
