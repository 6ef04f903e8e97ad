"""Small networks that take several tensors: in the calling convention of Hugging Face models, and simpler ones."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

VOCABULARY, LONGEST, PADDING = 12, 10, 0
CLASSES = 3


@dataclass
class ClassifierOutput:
    """What models of Hugging Face return, for whom `logits` is one of many."""

    logits: Tensor
    hidden_states: Tensor | None = None


class Encoder(nn.Module):
    """BERT, only smaller; ``each_token`` gives every token a class, ``(B, C, T)``."""

    def __init__(self, dropout: float = 0.2, each_token: bool = False) -> None:
        super().__init__()
        self.words, self.places, self.kinds = (nn.Embedding(size, 8) for size in (VOCABULARY, LONGEST, 2))
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm, self.dropout, self.classifier = nn.LayerNorm(8), nn.Dropout(dropout), nn.Linear(8, CLASSES)
        self.each_token = each_token

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, token_type_ids: Tensor | None = None
    ) -> ClassifierOutput:
        places = torch.arange(input_ids.shape[1], device=input_ids.device)
        h = self.words(input_ids) + self.places(places)  # (B, T, E)
        if token_type_ids is not None:
            h = h + self.kinds(token_type_ids)
        padding = None if attention_mask is None else attention_mask == 0
        h = self.encoder(self.dropout(self.norm(h)), src_key_padding_mask=padding)
        logits = self.classifier(self.dropout(h if self.each_token else h[:, 0]))
        return ClassifierOutput(logits.transpose(1, 2) if self.each_token else logits, h)


class OneTensorEncoder(Encoder):
    """The same network, layer for layer, for one tensor ``(B, T, 2)`` of ids and mask; the output is the logits."""

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(x[..., 0], attention_mask=x[..., 1]).logits


def sentences(count: int, length: int = 7, seed: int = 0) -> tuple[dict[str, Tensor], Tensor]:
    """Random tokens, padded to ``length``, and a class that the first of them tells."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(1, VOCABULARY, (count, length), generator=generator)
    lengths = torch.randint(2, length + 1, (count, 1), generator=generator)
    mask = (torch.arange(length) < lengths).long()
    return {"input_ids": ids * mask + PADDING * (1 - mask), "attention_mask": mask}, ids[:, 0] % CLASSES


def as_one_tensor(x: dict[str, Tensor]) -> Tensor:
    return torch.stack([x["input_ids"], x["attention_mask"]], -1)


class TwoBranches(nn.Module):
    """Numbers and a category, as positional arguments; the output is a dict."""

    def __init__(self, dropout: float = 0.3) -> None:
        super().__init__()
        self.numbers, self.category = nn.Linear(4, 6), nn.Embedding(5, 6)
        self.dropout, self.out = nn.Dropout(dropout), nn.Linear(6, CLASSES)

    def forward(self, numbers: Tensor, category: Tensor) -> dict[str, Tensor]:
        h = torch.tanh(self.numbers(numbers)) + self.category(category)
        return {"features": h, "logits": self.out(self.dropout(h))}


def customers(count: int, seed: int = 0) -> tuple[tuple[Tensor, Tensor], Tensor]:
    """Numbers ``(B, 4)``, a category ``(B,)``, and a class that both tell."""
    generator = torch.Generator().manual_seed(seed)
    numbers = torch.randn(count, 4, generator=generator)
    category = torch.randint(5, (count,), generator=generator)
    return (numbers, category), (category + (numbers[:, 0] > 0)) % CLASSES
