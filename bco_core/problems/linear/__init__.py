"""Linear models: descriptions by name, their matrices, and the problems built from them."""
