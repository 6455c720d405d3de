"""What weights are before the first step: PyTorch's defaults, or Keras'.

DPIS has Keras' defaults (section 5.2), and these differ by enough to change what a private training
reaches: PyTorch draws a layer's weights with variance 1 / (3 fan-in), Keras with
2 / (fan-in + fan-out) (Glorot & Bengio 2010), three times as much where both are alike. With ReLU,
what differs between two images is then several times larger behind six convolutions.
"""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import nn

from reticent.errors import one_of
from reticent.models.registry import Option

TORCH, KERAS = "torch", "keras"
START = Option("start", TORCH, "how weights start: as PyTorch's defaults (torch) or as keras'")

_WORDS = 0.05  # Keras' vectors of words are uniform within this
_M = TypeVar("_M", bound=nn.Module)


def started(model: _M, start: str) -> _M:
    """The model, with its weights drawn again where they are to start as Keras'.

    Linear layers and convolutions: Glorot's uniform distribution, biases 0. LSTMs: the same for the
    four gates' input weights as one matrix, an orthogonal matrix for the recurrent ones, biases 0
    but 1 for the forget gate. Vectors of words, if they are trained: uniform within 0.05.
    """
    if one_of("start", start, (TORCH, KERAS)) == TORCH:
        return model
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.LSTM):
            _start_lstm(module)
        elif isinstance(module, nn.Embedding) and module.weight.requires_grad:
            nn.init.uniform_(module.weight, -_WORDS, _WORDS)
    return model


@torch.no_grad()
def _start_lstm(lstm: nn.LSTM) -> None:
    units = lstm.hidden_size
    for name, parameter in lstm.named_parameters():
        if name.startswith("weight_ih"):
            nn.init.xavier_uniform_(parameter)
        elif name.startswith("weight_hh"):
            nn.init.orthogonal_(parameter)
        else:
            nn.init.zeros_(parameter)
            if name.startswith("bias_ih"):  # PyTorch adds two; gates: input, forget, cell, output
                parameter[units : 2 * units] = 1
