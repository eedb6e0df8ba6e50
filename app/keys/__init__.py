"""API keys: made, listed and revoked by the operator of the service."""
