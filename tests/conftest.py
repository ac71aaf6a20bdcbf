"""Shared by all tests: the servers."""

pytest_plugins = ["tests.servers.fixtures"]
