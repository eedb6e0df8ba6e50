"""Backtests: asked for, followed, and what they found."""
