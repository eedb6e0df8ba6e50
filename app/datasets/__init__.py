"""Data sets: parsing what planners send, profiling it, storing it in chunks, encoding it for learning."""
