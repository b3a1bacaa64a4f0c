"""One application's life: containers, deployments, windows, changes. Decides, and does no I/O."""
