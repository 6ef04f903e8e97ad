"""Memory that tensors free, kept for the next ones."""

from functools import cache

import torch

# glibc raises its thresholds to the size of a freed block, up to 32 MiB with the block's header.
_LARGEST_BYTES = 32 * 2**20 - 2**14


@cache
def keep_freed_memory() -> None:
    """Let glibc keep up to 64 MiB of freed memory in this process; elsewhere it does nothing.

    A training step frees all that it allocated. By default glibc returns it to the system, and the next step pays for
    each page again: 1,000 to 5,000 page faults in a calibrated step of a small Transformer, a tenth of its time. glibc
    learns from the largest block that was freed, which is one here that nobody touched. Where thresholds are set, by
    ``MALLOC_TRIM_THRESHOLD_`` or ``mallopt``, they stay as they are.
    """
    torch.empty(_LARGEST_BYTES, dtype=torch.uint8, device="cpu")
