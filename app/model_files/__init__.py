"""Models as files: MPS, LP and SMPS in, MPS out."""
