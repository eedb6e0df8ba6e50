"""Prescriptions: a context in, a decision out, with what it may cost."""
