"""What a planner would do without us, done well."""
