"""Errors of the core; their messages tell the caller what to do."""

from __future__ import annotations


class BcoError(Exception):
    """Base of every error the core raises on purpose."""


class InvalidInput(BcoError, ValueError):
    """The caller's data or specification cannot be used; the message says what would be right.

    ``where`` is the path to the offending part inside the specification, such as ``("items", 0, "overage_cost")``.
    """

    def __init__(self, message: str, where: tuple[str | int, ...] = ()) -> None:
        super().__init__(message)
        self.where = where


class SolverFailure(BcoError):
    """A solver stopped without a certified answer."""


class Diverged(BcoError):
    """Learning produced non-finite numbers."""


class OutOfTime(BcoError):
    """The time limit passed before there was an answer."""


class Cancelled(BcoError):
    """The caller stopped the computation."""
