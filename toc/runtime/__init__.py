"""Parts that each process needs and that use no server: clock, services, settings, metrics."""
