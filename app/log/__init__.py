"""The log of prescriptions: what was answered, what happened later, and the same answer again."""
