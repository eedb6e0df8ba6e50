"""What policies would have cost on rows that they had not seen, beside each other and beside what was really done."""
