"""Two-stage linear problems: how planners describe them, the matrices, and the problem itself."""
