"""Strong baselines: the rules that a planner would use without decision-focused learning."""
