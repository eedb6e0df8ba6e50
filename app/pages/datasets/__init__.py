"""Histories: uploaded with a preview, shown with what looks odd."""
