"""Sinks to brokers: the rules of each answer, the real servers, servers that are killed."""
