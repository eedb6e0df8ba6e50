"""Ready-made problems: a few lines that planners know, compiled to a linear model by names."""
