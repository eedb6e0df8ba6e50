"""What planners ask besides a decision, and how fast it is answered."""
