"""The newsvendor experiment: its data, its runs and its report."""
