"""What was prescribed, and what came of it."""
