"""Pages about problems: forms, mathematical notation, and a check while typing."""
