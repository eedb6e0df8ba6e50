"""API keys, which the operator creates, lists and revokes, and sessions of browsers."""
