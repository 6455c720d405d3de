"""The models that steps are timed on: those of the papers, a recurrent one and a transformer."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from reticent import models

CLASSES = 10


class Encoder(nn.Module):
    """Token embedding, transformer encoder, mean over the sequence, linear head."""

    def __init__(
        self, vocabulary: int, width: int = 256, layers: int = 6, activation: str = "relu"
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        layer = nn.TransformerEncoderLayer(
            width, 8, 4 * width, dropout=0.0, activation=activation, batch_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the class scores of each row of tokens."""
        return self.head(self.encoder(self.embedding(tokens)).mean(1))


class Case(NamedTuple):
    """A model with its input and batch, on either device."""

    label: str
    cuda: tuple[tuple[int, ...], int]
    cpu: tuple[tuple[int, ...], int]
    vocabulary: int = 0
    """How many tokens; 0 where the input is real numbers."""

    def build(self, name: str, shape: tuple[int, ...], smooth: bool = False) -> nn.Module:
        """The model, with the same weights each time; without kinks, if `smooth`.

        At a kink rounding decides about whole terms of the gradient, whoever computes it:
        comparisons are made with tanh or GELU and mean-pooling between the same layers.
        """
        torch.manual_seed(0)
        if name == "transformer":
            return Encoder(self.vocabulary, activation="gelu" if smooth else "relu")
        chosen = {"activation": "tanh"} if smooth else {}
        model = models.build(name, classes=CLASSES, input_shape=shape, seed=0, **chosen)
        for place, layer in list(model.named_children()) if smooth else ():
            if isinstance(layer, nn.MaxPool2d):
                setattr(model, place, nn.AvgPool2d(layer.kernel_size, layer.stride, layer.padding))
        return model

    def examples(self, shape: tuple[int, ...], batch: int, device: str) -> tuple[Tensor, Tensor]:
        """A batch of random numbers or tokens."""
        coins = torch.Generator().manual_seed(0)
        if self.vocabulary:
            inputs = torch.randint(0, self.vocabulary, (batch, *shape), generator=coins)
        else:
            inputs = torch.randn(batch, *shape, generator=coins)
        targets = torch.randint(0, CLASSES, (batch,), generator=coins)
        return inputs.to(device), targets.to(device)


CASES = {
    "mnist-cnn": Case("small CNN", ((1, 28, 28), 2048), ((1, 28, 28), 512)),
    "scatter-cnn": Case("scattering CNN", ((243, 8, 8), 8192), ((243, 8, 8), 128)),
    "cifar-cnn": Case("CIFAR CNN", ((3, 32, 32), 2048), ((3, 32, 32), 128)),
    "wrn-16-4": Case("WRN-16-4, GroupNorm", ((3, 32, 32), 512), ((3, 32, 32), 32)),
    "imdb-bilstm": Case("IMDb BiLSTM", ((80,), 256), ((80,), 256), 20_000),
    "transformer": Case("transformer, 6 layers", ((128,), 256), ((64,), 64), 10_000),
}
