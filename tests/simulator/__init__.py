"""A whole cluster in one process: clock, network and disks that a seed decides.

The simulated Runtime of tests. It is not part of the wheel.
"""
