"""Ready-made problems: short specifications in planners' terms, compiled to a linear model by names."""
