"""Aliases: names of a caller's own for posteriors, which move from one to the next without a change elsewhere."""
