"""The newsvendor: how much to order of each item before its demand is known."""

from bco_core.problems.newsvendor.problem import Newsvendor as Newsvendor
