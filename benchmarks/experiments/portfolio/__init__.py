"""The portfolio experiment: its data, its runs and its report."""
