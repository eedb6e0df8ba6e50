"""The log of prescriptions: answers, their outcomes, and the same answers again."""
