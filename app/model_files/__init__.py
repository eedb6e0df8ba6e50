"""Model files: import MPS, LP and SMPS, export MPS."""
