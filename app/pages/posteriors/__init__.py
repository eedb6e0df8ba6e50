"""Pages about posteriors: the verdict first, then the evidence for it."""
