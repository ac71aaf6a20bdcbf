"""Remote clients: the verbs of `TimeoutCenter` over HTTP, and workers that lease their jobs over HTTP.

    server_address     the URL and the token of a server, and where they may be used
    verbs              the verbs, as generators of calls: the same for sync and async clients
    wire_jobs          jobs and answers as JSON
    http_call          one call, and what its answer or error means
    retry_plan         whether and when a call is repeated
    transport          sends calls with httpx
    remote_center      `RemoteCenter` and `AsyncRemoteCenter`
    leases             the calls of a remote worker
    remote_worker      runs handlers over leases

Needs the extra toc[client]. Importing this package imports no part of the extra.
"""
