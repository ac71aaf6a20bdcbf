"""Retention on real servers."""
