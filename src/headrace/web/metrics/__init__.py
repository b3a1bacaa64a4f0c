"""What each role tells Prometheus, and what `/health` and `/ready` answer."""
