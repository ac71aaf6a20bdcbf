"""Remote clients and remote workers, over an app that listens on a socket."""
