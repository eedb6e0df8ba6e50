"""Prescriptions: decisions for new contexts, with their expected costs."""
