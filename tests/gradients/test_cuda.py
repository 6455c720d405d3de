from __future__ import annotations

import pytest
import torch
from torch import nn

from reticent import models
from reticent.gradients import clipped_sum, isolation

from .oracle import agrees

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
CE = nn.CrossEntropyLoss()


class Everything(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(11, 8)
        self.encoder = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0)
        self.rnn = nn.GRU(8, 8, batch_first=True)
        self.conv = nn.Conv1d(8, 6, 3, padding=1, groups=2)
        self.norm = nn.GroupNorm(2, 6)
        self.head = nn.Linear(6, 3)

    def forward(self, tokens):
        h = self.rnn(self.encoder(self.table(tokens)))[0]
        return self.head(torch.relu_(self.norm(self.conv(h.transpose(1, 2)))).mean(2))


def batch(size=7):
    torch.manual_seed(1)
    return torch.randint(0, 11, (size, 5)).cuda(), torch.randint(0, 3, (size,)).cuda()


def test_agrees_with_the_oracle():
    torch.manual_seed(0)
    for size in (0, 1, 7):
        agrees(Everything().double().cuda(), CE, *batch(size))


def test_single_precision_with_and_without_tf32():
    torch.manual_seed(0)
    model = Everything().cuda()
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    try:
        for allowed in (False, True):
            torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = allowed
            agrees(model, CE, *batch(), tolerance=2e-2 if allowed else 1e-3)
            x, y = batch()
            for i in range(7):
                one = clipped_sum(model, CE, x[i : i + 1], y[i : i + 1], 1e-2)
                assert float(one.flat().double().norm()) <= 1e-2
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


def test_a_recurrent_layer_is_not_taken_for_one_that_mixes():
    """cuDNN computes it in TF32 unless told not to: an example alone then differs."""
    for seed in range(5):
        model = models.build(
            "imdb-bilstm", classes=2, input_shape=(80,), vocabulary=500, start="keras", seed=seed
        )
        coins = torch.Generator().manual_seed(seed)
        tokens = torch.randint(0, 500, (16, 80), generator=coins).cuda()
        isolation(model.cuda(), CE, tokens, torch.randint(0, 2, (16,), generator=coins).cuda())


def test_the_host_never_waits_for_the_device():
    model, (x, y) = Everything().cuda(), batch()
    mask = torch.ones(7, device="cuda")
    clipped_sum(model, CE, x, y, 0.1, path="fast", mask=mask)
    torch.cuda.set_sync_debug_mode("error")
    try:
        clipped_sum(model, CE, x, y, 0.1, path="fast", mask=mask)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_half_precision_by_autocast():
    torch.manual_seed(0)
    model, (x, y) = Everything().cuda(), batch()
    exact = clipped_sum(model, CE, x, y, 0.1)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        half = clipped_sum(model, CE, x, y, 0.1, path="fast")
    torch.testing.assert_close(half.norms, exact.norms, rtol=0.1, atol=1e-2)
