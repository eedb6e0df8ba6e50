"""What was learned, to be looked at: the verdict first, then all that it rests on."""
