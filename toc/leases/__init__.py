"""Leases of remote consumers: jobs of pull types are claimed for consumers that wait (ADR 39).

`LeaseServer` is the whole: one per process of `toc web`. Pollers and scanners of that process find due jobs
of the types that consumers wait for, only as many as these want. A claim stage gives each row to a consumer
first and claims it then. Consumers settle their leases by token, at any replica.
"""
