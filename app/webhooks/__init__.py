"""Word of ended jobs, sent to addresses of the planner's own."""
