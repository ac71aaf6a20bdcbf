"""The dashboard in a real browser: Debian's Chromium, driven by Playwright, on MySQL, Redis and a worker."""
