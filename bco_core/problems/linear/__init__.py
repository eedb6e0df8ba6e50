"""Linear models: how planners describe them, the matrices, and the problems that serve them."""
