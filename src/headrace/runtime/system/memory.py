"""What the C library does with memory that is freed.

By default it gives large buffers back to the kernel, and every page of the next one costs a fault:
0.2 to 3 µs for 4 KiB, depending on the (virtual) machine, as much as copying it ten times. Frames,
batches and columns are such buffers, and the next one is always on its way. For Spark's workers:
servers, whose threads free what the loop made, are no faster with it.
"""

from __future__ import annotations

import ctypes
from functools import cache

MAPPED_BYTES_MIN = 32 << 20  # larger buffers still come from the kernel, and go back to it
KEPT_BYTES_MAX = 128 << 20  # free at the end of the heap: above it the kernel gets it back

# <malloc.h> of glibc
_TRIM_THRESHOLD = -1
_MMAP_THRESHOLD = -3
_ARENA_MAX = -8


@cache
def keep_freed_memory() -> bool:
    """Keep up to KEPT_BYTES_MAX of freed memory for the next buffers; False where that cannot be
    said (another C library). Once per process is enough, before it starts threads."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    # One arena: those of threads are cut into small heaps, which come and go with large buffers.
    settings = {
        _ARENA_MAX: 1,
        _MMAP_THRESHOLD: MAPPED_BYTES_MIN,
        _TRIM_THRESHOLD: KEPT_BYTES_MAX,
    }
    done = [mallopt(name, value) for name, value in settings.items()]
    return done == [1] * len(settings)
