"""Jobs: asked for, followed, told."""
