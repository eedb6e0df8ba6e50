"""From a Gibbs target to a posterior: variational inference (Algorithm 1)."""
