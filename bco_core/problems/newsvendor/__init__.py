"""The newsvendor: description, formula, price search, programs."""

from bco_core.problems.newsvendor.problem import Newsvendor as Newsvendor
