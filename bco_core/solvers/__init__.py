"""Batched solver kernels. Each is exact and has an independent reference in the tests."""
