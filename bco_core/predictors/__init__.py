"""Point predictors f_θ, one family a file."""
