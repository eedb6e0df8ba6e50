"""The paper's experiments and a real data set, from rows to report."""
