"""Tracing and error reports of others, by the hooks of toc: nothing here that an application could not do."""
