"""Inference jobs: accepted by the API, run by workers, each in a child process."""
