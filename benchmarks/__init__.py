"""Experiments and benches: run from a checkout, not part of the product."""
