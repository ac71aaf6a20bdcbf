"""Alarms: messages to a chat about dead jobs, failures and late jobs. Needs toc[web]."""
