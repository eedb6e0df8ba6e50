"""Solver processes: where work goes that may take long, so that it can be ended, and its memory is bounded."""
