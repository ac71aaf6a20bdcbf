"""The composition root: from settings to connected, running services. The only part that knows all others."""
