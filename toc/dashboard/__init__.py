"""The dashboard: pages of `toc web` for people. See docs/adr/0052-dashboard.md."""
