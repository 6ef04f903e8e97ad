"""Bayesian SegNet-Basic with dropout on its central four encoder and decoder units (Kendall et al. 2015)."""

from typing import Any

from torch import Tensor, nn

from stakes.errors import StakesError

ENCODER = (64, 128, 256, 512)
DECODER = (512, 256, 128, 64)


class SegNet(nn.Module):
    """Four convolutions down, four up, and a 1 x 1 convolution to the classes: ``(B, 3, H, W) -> (B, C, H, W)``.

    H and W have to be multiples of 8. ``width`` scales the channels, for small machines; at 1 there are
    5,464,140 parameters for 12 classes. Batch norm is over channels: the authors' ran over the image's width.
    """

    def __init__(self, classes: int = 12, width: float = 1.0, dropout: float = 0.5, inputs: int = 3) -> None:
        super().__init__()
        if not width > 0:
            raise StakesError(f"expected a width factor above 0, but got {width}")
        self.settings = {"classes": classes, "width": width, "dropout": dropout, "inputs": inputs}
        down = [max(1, round(width * size)) for size in ENCODER]
        up = [max(1, round(width * size)) for size in DECODER]
        self.encoder = nn.Sequential(
            *_unit(inputs, down[0]), nn.ReLU(), nn.MaxPool2d(2),
            *_unit(down[0], down[1]), nn.ReLU(), nn.MaxPool2d(2),
            *_unit(down[1], down[2]), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(dropout),
            *_unit(down[2], down[3]), nn.ReLU(), nn.Dropout(dropout),
        )  # fmt: skip
        self.decoder = nn.Sequential(
            *_unit(down[3], up[0]), nn.Dropout(dropout), nn.Upsample(scale_factor=2),
            *_unit(up[0], up[1]), nn.Dropout(dropout), nn.Upsample(scale_factor=2),
            *_unit(up[1], up[2]), nn.Upsample(scale_factor=2),
            *_unit(up[2], up[3]), nn.Conv2d(up[3], classes, kernel_size=1),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[-1] % 8 or x.shape[-2] % 8:
            raise StakesError(f"expected images whose sides are multiples of 8, but got {tuple(x.shape[-2:])}")
        out: Tensor = self.decoder(self.encoder(x))
        return out

    def spec(self) -> dict[str, Any]:
        """Its kind and settings in JSON types."""
        return {"kind": "segnet", **self.settings}


def _unit(inputs: int, outputs: int) -> list[nn.Module]:
    return [nn.Conv2d(inputs, outputs, kernel_size=3, padding=1), nn.BatchNorm2d(outputs)]
