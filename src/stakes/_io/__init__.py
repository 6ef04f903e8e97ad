"""Files, tensors on disk, threads and processes."""
