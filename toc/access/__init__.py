"""Who may do what over HTTP: tokens, the one function that authorises, limits, and the audit."""
