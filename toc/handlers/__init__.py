"""Handlers by biz_type, and the verdicts that they may return."""
