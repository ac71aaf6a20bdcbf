"""Retention: ended jobs and old events are deleted, gently."""
