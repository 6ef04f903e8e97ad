"""What an operation puts out, seen from below."""

from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


class LargestTensor(TorchDispatchMode):
    """The size of the largest tensor that an operation inside puts out."""

    numel = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.numel = max(self.numel, out.numel() if isinstance(out, Tensor) else 0)
        return out
