"""Inference: from a Gibbs target to a posterior, by variational inference or Metropolis–Hastings."""
