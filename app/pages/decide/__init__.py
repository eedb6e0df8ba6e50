"""The page that decides: context form, answer, what-ifs, explanation, tables."""
