"""Pages for people: the docs page, served without any outside address."""
