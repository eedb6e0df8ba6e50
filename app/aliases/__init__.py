"""Aliases: names that callers give to posteriors, and move to newer ones."""
