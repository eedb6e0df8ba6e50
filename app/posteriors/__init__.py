"""Posteriors: particles and components in the database, loaded once and kept warm."""
