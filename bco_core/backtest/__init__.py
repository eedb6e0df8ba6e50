"""Backtests: costs of policies on unseen rows, compared with each other and with the decisions actually taken."""
