"""The networks measured beside `stakes.MLP`, written as their users write them; and the usual loop over one."""

import torch
from torch import Tensor, nn

WIDTH, TOKENS, IMAGE = 64, 32, (3, 16, 16)


class ResidualBlock(nn.Module):
    """Of a wide residual network (Zagoruyko and Komodakis 2016): dropout between two convolutions."""

    def __init__(self, channels: int, dropout: float) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.BatchNorm2d(channels), nn.ReLU(), nn.Conv2d(channels, channels, 3, padding=1))
        self.dropout = nn.Dropout(dropout)
        self.second = nn.Sequential(nn.BatchNorm2d(channels), nn.ReLU(), nn.Conv2d(channels, channels, 3, padding=1))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.second(self.dropout(self.first(x)))
        return out


def residual_network(channels: int = 32, blocks: int = 3, dropout: float = 0.3, classes: int = 10) -> nn.Module:
    """For images of three colours."""
    return nn.Sequential(
        nn.Conv2d(3, channels, 3, padding=1),
        *(ResidualBlock(channels, dropout) for _ in range(blocks)),
        nn.BatchNorm2d(channels),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(channels, classes),
    )


class Transformer(nn.Module):
    """Two layers of PyTorch's own encoder over embedded tokens; dropout at all of its places, in attention too."""

    def __init__(self, vocabulary: int = 1_000, classes: int = 5, dropout: float = 0.1) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, WIDTH)
        self.position = nn.Parameter(0.02 * torch.randn(TOKENS, WIDTH))
        self.dropout = nn.Dropout(dropout)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=dropout, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        out = self.encoder(self.dropout(self.embedding(tokens) + self.position))  # (B, T, E)
        logits: Tensor = self.head(out.mean(1))
        return logits


def sentences(count: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Half of the tokens of a sentence are from the words of its topic, of which there are five; a tenth of the labels
    are redrawn.
    """
    generator = torch.Generator().manual_seed(seed)
    topics = torch.randint(5, (count,), generator=generator)
    any_words = torch.randint(1_000, (count, TOKENS), generator=generator)
    own_words = 200 * topics[:, None] + torch.randint(200, (count, TOKENS), generator=generator)
    tokens = torch.where(torch.rand(count, TOKENS, generator=generator) < 0.5, own_words, any_words)
    others = torch.randint(5, (count,), generator=generator)
    return tokens, torch.where(torch.rand(count, generator=generator) < 0.1, others, topics)


class Recurrent(nn.Module):
    """An LSTM with dropout before it; its last state is classified."""

    def __init__(self, classes: int = 5, dropout: float = 0.2) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.lstm = nn.LSTM(WIDTH, WIDTH, batch_first=True)
        self.head = nn.Linear(WIDTH, classes)

    def forward(self, x: Tensor) -> Tensor:
        out, _ = self.lstm(self.dropout(x))  # (B, T, E)
        logits: Tensor = self.head(out[:, -1])
        return logits


def small_cnn(classes: int = 10, dropout: float = 0.25) -> nn.Module:
    """Two convolutions, dropout and a linear layer, for digits of 28 x 28."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(dropout),
        nn.Linear(32 * 7 * 7, classes),
    )


def dropout_on(network: nn.Module) -> nn.Module:
    """In training mode, but for batch norm, whose statistics stay as they are."""
    for part in network.train().modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm):
            part.eval()
    return network


@torch.no_grad()
def mean_of_passes(network: nn.Module, x: Tensor, passes: int) -> Tensor:
    """``(B, C, ...)`` the usual loop: the mean predictive of passes with dropout on."""
    dropout_on(network)
    total = network(x).softmax(1)
    for _ in range(passes - 1):
        total += network(x).softmax(1)
    return total / passes
