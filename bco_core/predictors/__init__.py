"""Point predictors f_θ: linear models and networks."""
