"""Speed of the questions that planners ask after a decision."""
