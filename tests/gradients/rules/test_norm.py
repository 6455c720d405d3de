from __future__ import annotations

import pytest
import torch
from torch import nn

from ..oracle import agrees


class Mean(nn.Module):
    def forward(self, x):
        return x.flatten(2).mean(2) if x.ndim > 2 else x


CASES = {
    "layer": (nn.LayerNorm(6), (6,)),
    "layer, positions": (nn.LayerNorm(6), (4, 3, 6)),
    "layer, two dimensions": (nn.LayerNorm((3, 6)), (4, 3, 6)),
    "layer, no bias": (nn.LayerNorm(6, bias=False), (4, 6)),
    "rms": (nn.RMSNorm(6), (4, 6)),
    "rms, eps": (nn.RMSNorm((3, 6), eps=1e-2), (4, 3, 6)),
    "group": (nn.GroupNorm(2, 6), (6, 4, 5)),
    "group, flat": (nn.GroupNorm(3, 6), (6,)),
    "instance 1": (nn.InstanceNorm1d(6, affine=True), (6, 5)),
    "instance 2": (nn.InstanceNorm2d(6, affine=True, eps=1e-2), (6, 5, 4)),
    "instance 3": (nn.InstanceNorm3d(6, affine=True), (6, 3, 2, 2)),
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("batch", [0, 1, 5])
@pytest.mark.parametrize("case", CASES)
def test_agrees_with_the_oracle(dtype, reduction, batch, case):
    torch.manual_seed(0)
    norm, shape = CASES[case]
    features = 1
    for n in shape:
        features *= n
    model = nn.Sequential(norm, nn.Tanh(), nn.Flatten(), nn.Linear(features, 3)).to(dtype)
    for parameter in norm.parameters():
        nn.init.normal_(parameter)
    x = torch.randn(batch, *shape, dtype=dtype) * 3
    agrees(model, nn.CrossEntropyLoss(reduction=reduction), x, torch.randint(0, 3, (batch,)))


def test_half_precision_is_widened():
    torch.manual_seed(0)
    for norm in (nn.LayerNorm(6), nn.RMSNorm(6)):
        model = nn.Sequential(nn.Linear(6, 6), norm, nn.Linear(6, 3)).bfloat16()
        x, y = torch.randn(5, 6).bfloat16(), torch.randint(0, 3, (5,))
        agrees(model, nn.CrossEntropyLoss(), x, y, tolerance=0.05)
