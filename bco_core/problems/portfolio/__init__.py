"""Portfolios: how much to hold of each asset before its return is known."""
