"""Deciding by hand: the context, the answer, decisions of one's own, reasons, whole tables."""
