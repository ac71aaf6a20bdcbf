"""Retention: deletes old ended jobs and old events, in small transactions with pauses."""
