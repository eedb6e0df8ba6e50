"""What is decided and what it costs: forms, notation, a check as one types."""
