"""What becomes of memory that is freed: at one step of a training it is wanted again at the next, after a large image not."""

from __future__ import annotations

import ctypes
import sys

# Numbers of glibc's malloc.h, and what they are set to: never give memory back, ask for 64 MiB at a time, and serve even
# large tensors from what is kept.
TRIM_THRESHOLD, TOP_PAD, MMAP_THRESHOLD = -1, -2, -3
SETTINGS = {MMAP_THRESHOLD: 2**30, TRIM_THRESHOLD: 2**31 - 1, TOP_PAD: 2**26}


def keep_freed_memory() -> bool:
    """Have the C library keep what is freed, and tell whether it does.

    Otherwise it returns large tensors to the system, which must then clear the pages again at every step: 10 to 15 % of a
    training step of the default U-Net at 32 x 32 and 64 x 64 (2 threads, glibc 2.36).  Only glibc has these settings.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):  # another C library
        return False
    return all(mallopt(name, value) == 1 for name, value in SETTINGS.items())


def return_freed_memory() -> bool:
    """Have the C library give back what is freed, and tell whether it does; each thread keeps some of its own otherwise."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError):  # another C library
        return False
    return bool(trim(0))
