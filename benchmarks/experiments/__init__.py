"""The paper's experiments and real data sets, from rows to report."""
