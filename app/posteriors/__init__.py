"""Posteriors: their options, storage and files."""
