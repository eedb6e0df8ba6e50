"""The ``bco`` command and what it runs."""
