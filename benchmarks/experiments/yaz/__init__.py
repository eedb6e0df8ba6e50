"""The yaz experiment: its data, its runs and its report."""
