"""API keys: made, listed and revoked by whoever runs the service."""
