"""Decision-focused Gibbs posteriors: the numerics, free of web, validation and database packages."""
