"""The BCO service: HTTP API, database and job engine around ``bco_core``."""
