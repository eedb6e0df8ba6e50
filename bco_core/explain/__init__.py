"""Explanations of a decision: possible outcomes, derivatives, Shapley values of contexts, similar rows."""
