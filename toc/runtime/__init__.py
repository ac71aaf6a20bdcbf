"""What each process needs and no server: clock, randomness, service life cycle, settings, metrics."""
