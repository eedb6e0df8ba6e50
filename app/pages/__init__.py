"""Pages for people, and the docs page; nothing is loaded from other hosts."""
