"""Sends due jobs to other services by HTTP, as Standard Webhooks 1.0. Needs toc[web]."""
