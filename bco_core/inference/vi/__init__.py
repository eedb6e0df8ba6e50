"""Variational inference: Algorithm 1, fold mixtures of it, and ``auto``, which selects by held-out cost."""
