"""Webhooks: notifications of ended jobs."""
