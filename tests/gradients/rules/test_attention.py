from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

from reticent.gradients import clipped_sum

from ..oracle import agrees


class Attend(nn.Module):
    def __init__(self, *, cross=False, mask=None, padded=False, call=None, **options):
        super().__init__()
        self.mha = nn.MultiheadAttention(8, 2, **options)
        self.head = nn.Linear(8, 3)
        self.cross, self.mask, self.padded, self.call = cross, mask, padded, call or {}
        self.k, self.v = options.get("kdim") or 8, options.get("vdim") or 8

    def forward(self, x):
        batch, length, _ = x.shape
        q = x
        k = x[:, 1:, : self.k] * 2 if self.cross else x
        v = torch.sin(x[:, 1:, : self.v]) if self.cross else x
        extra = dict(self.call)
        if self.padded:
            blocked = torch.zeros(batch, k.shape[1], dtype=torch.bool)
            blocked[:, -1] = True
            extra["key_padding_mask"] = blocked
        if self.mask is not None:
            causal = torch.ones(length, k.shape[1]).triu(1).bool()
            if self.mask == "float":
                causal = causal.to(x.dtype) * -3
            if self.mask == "each":
                causal = causal.expand(batch * 2, -1, -1)
            extra["attn_mask"] = causal
        if not self.mha.batch_first:
            q, k, v = (
                (q.transpose(0, 1),) * 3
                if not self.cross
                else (t.transpose(0, 1) for t in (q, k, v))
            )
        out, weights = self.mha(q, k, v, **extra)
        out = out if self.mha.batch_first else out.transpose(0, 1)
        pooled = self.head(out.mean(1))
        return (
            pooled
            if weights is None
            else pooled + weights.flatten(1).square().sum(1)[:, None] * torch.arange(3)
        )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("batch", [0, 1, 3])
@pytest.mark.parametrize("cross", [False, True])
def test_agrees_with_the_oracle(dtype, reduction, batch, cross):
    torch.manual_seed(0)
    model = Attend(cross=cross, batch_first=True).to(dtype)
    x, y = torch.randn(batch, 5, 8, dtype=dtype), torch.randint(0, 3, (batch,))
    agrees(model, nn.CrossEntropyLoss(reduction=reduction), x, y)


@pytest.mark.parametrize(
    ("batch_first", "bias", "kv", "zero", "cross"),
    list(itertools.product([True, False], repeat=5)),
)
def test_options(batch_first, bias, kv, zero, cross):
    torch.manual_seed(0)
    model = Attend(
        cross=cross, batch_first=batch_first, bias=bias, add_bias_kv=kv, add_zero_attn=zero
    ).double()
    x, y = torch.randn(2, 4, 8, dtype=torch.float64), torch.tensor([0, 2])
    agrees(model, nn.CrossEntropyLoss(), x, y, paths=("fast",))


@pytest.mark.parametrize("mask", [None, "bool", "float", "each"])
@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("kv", [True, False])
@pytest.mark.parametrize("weights", [True, False])
@pytest.mark.parametrize("average", [True, False])
def test_masks_and_weights(mask, padded, kv, weights, average):
    torch.manual_seed(0)
    call = {"need_weights": weights, "average_attn_weights": average}
    model = Attend(
        mask=mask, padded=padded, call=call, add_bias_kv=kv, add_zero_attn=kv, batch_first=True
    ).double()
    x, y = torch.randn(3, 4, 8, dtype=torch.float64), torch.tensor([0, 2, 1])
    agrees(model, nn.CrossEntropyLoss(), x, y, paths=("fast",))


def test_other_key_and_value_widths_and_causality():
    torch.manual_seed(0)
    x, y = torch.randn(3, 4, 8, dtype=torch.float64), torch.tensor([0, 2, 1])
    agrees(Attend(cross=True, kdim=5, vdim=3).double(), nn.CrossEntropyLoss(), x, y)
    causal = {"is_causal": True, "need_weights": False}
    model = Attend(mask="bool", call=causal, batch_first=True).double()
    agrees(model, nn.CrossEntropyLoss(), x, y)


def test_dropout_on_attention_weights_only_in_training():
    torch.manual_seed(0)
    x, y = torch.randn(3, 4, 8, dtype=torch.float64), torch.tensor([0, 2, 1])
    for need in (True, False):
        model = Attend(dropout=0.5, batch_first=True, call={"need_weights": need}).double()
        first, second = (
            clipped_sum(model, nn.CrossEntropyLoss(), x, y, 1.0, path="fast").flat()
            for _ in range(2)
        )
        assert not torch.equal(first, second)
        model.eval()
        agrees(model, nn.CrossEntropyLoss(), x, y)


def test_both_kinds_of_call_on_one_module():
    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.mha = nn.MultiheadAttention(8, 2, batch_first=True)
            self.head = nn.Linear(8, 3)

        def forward(self, x):
            a, _ = self.mha(x, x, x)  # packed projection
            b, _ = self.mha(a, x, a * 2)  # three blocks of rows
            c, _ = self.mha(b, a, x)
            return self.head((a + b + c).mean(1))

    torch.manual_seed(0)
    x, y = torch.randn(3, 4, 8, dtype=torch.float64), torch.tensor([0, 2, 1])
    agrees(Both().double(), nn.CrossEntropyLoss(), x, y)


def test_only_the_output_projection_is_trained():
    torch.manual_seed(0)
    model = Attend(batch_first=True).double()
    model.mha.in_proj_weight.requires_grad_(False)
    model.mha.in_proj_bias.requires_grad_(False)
    x, y = torch.randn(3, 4, 8, dtype=torch.float64), torch.tensor([0, 2, 1])
    agrees(model, nn.CrossEntropyLoss(), x, y)


class Encoder(nn.Module):
    def __init__(self, **options):
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, **options)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], dtype=x.dtype)
        return self.head(self.layers(x, mask=mask, is_causal=True).mean(1))


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("training", [True, False])
def test_transformer_encoder(norm_first, training):
    torch.manual_seed(0)
    model = Encoder(dropout=0.0, norm_first=norm_first).double().train(training)
    x, y = torch.randn(3, 5, 8, dtype=torch.float64), torch.tensor([0, 2, 1])
    agrees(model, nn.CrossEntropyLoss(), x, y)


def test_transformer_decoder():
    class Decode(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.TransformerDecoderLayer(8, 2, 16, batch_first=True, dropout=0.0)
            self.head = nn.Linear(8, 3)

        def forward(self, x, memory):
            return self.head(self.layer(x, memory).mean(1))

    torch.manual_seed(0)
    x = torch.randn(3, 5, 8, dtype=torch.float64), torch.randn(3, 4, 8, dtype=torch.float64)
    agrees(Decode().double(), nn.CrossEntropyLoss(), x, torch.tensor([0, 2, 1]))
