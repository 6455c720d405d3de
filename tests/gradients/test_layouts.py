from __future__ import annotations

import pytest
import torch
from torch import nn

from reticent.gradients import RepeatedSum, clipped_sum, layouts
from reticent.gradients.rounding import precision

CE = nn.CrossEntropyLoss()
cuda = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


class Wide(nn.Module):
    def __init__(self, viewing=False, groups=4):
        super().__init__()
        self.first = nn.Conv2d(3, 16, 3, padding=1)
        self.norm = nn.GroupNorm(groups, 16)
        self.second = nn.Conv2d(16, 64, 3, stride=2, padding=1)
        self.head = nn.Linear(64 * 9, 3)
        self.viewing = viewing

    def forward(self, x):
        x = torch.tanh(self.second(torch.tanh(self.norm(self.first(x)))))
        return self.head(x.view(x.shape[0], -1) if self.viewing else x.flatten(1))


def batch(device="cpu"):
    torch.manual_seed(1)
    x, y = torch.randn(5, 3, 6, 6), torch.tensor([0, 1, 2, 0, 1])
    return x.to(device), y.to(device)


def test_only_images_are_turned():
    x, _ = batch()
    tokens = torch.zeros(5, 3, 6, 6, dtype=torch.long)
    turned = layouts.channels_last({"image": x, "tokens": tokens, "row": x[0, 0], "name": "a"})
    assert turned["image"].is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(turned["image"], x)
    assert turned["tokens"] is tokens
    assert turned["row"].is_contiguous()
    assert turned["name"] == "a"


def test_a_model_that_needs_its_order_is_found_out():
    torch.manual_seed(0)
    assert layouts.fits(Wide(), CE, *batch())
    assert not layouts.fits(Wide(viewing=True), CE, *batch())


def test_on_a_cpu_overlapping_pools_gain():
    assert not layouts.gains(Wide())
    for stride, gains in ((1, True), (2, False)):
        model = nn.Sequential(nn.Conv2d(1, 6, 3), nn.MaxPool2d(2, stride))
        assert layouts.gains(model) is gains
    assert layouts.gains(nn.MaxPool2d((2, 3), (2, 1)))
    assert not layouts.gains(nn.Sequential(nn.InstanceNorm2d(3), nn.MaxPool2d(2, 1)))


@pytest.mark.parametrize("channels", [1, 3])
def test_on_a_cpu_the_sum_is_the_same_in_either_order(channels):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(channels, 6, 3), nn.MaxPool2d(2, 1), nn.Tanh(), nn.Flatten(), nn.Linear(54, 3)
    ).double()
    x, y = torch.randn(5, channels, 6, 6).double(), torch.tensor([0, 1, 2, 0, 1])
    seen = []
    model[1].register_forward_hook(lambda module, args, y: seen.append(y.stride()))
    repeated = RepeatedSum(model, CE, 0.1)
    total = repeated(x, y)
    assert repeated._last
    assert seen[-1][1] == 1  # an image of one channel was turned too
    torch.testing.assert_close(total.flat(), clipped_sum(model, CE, x, y, 0.1).flat())
    assert len(repeated(x[:0], y[:0]).norms) == 0


@pytest.mark.parametrize("device", [pytest.param("cuda", marks=cuda)])
def test_which_models_gain(device):
    with precision("tf32", torch.device(device)):
        assert layouts.gains(Wide().to(device))
        assert not layouts.gains(nn.Conv2d(3, 16, 3).to(device))  # narrow
        assert not layouts.gains(nn.Conv2d(64, 64, 3, groups=64).to(device))
        assert not layouts.gains(nn.Sequential(nn.Conv2d(3, 64, 3), nn.InstanceNorm2d(64)).cuda())
        still = nn.Sequential(nn.GroupNorm(1, 3, affine=False), nn.Conv2d(3, 64, 3)).cuda()
        assert not layouts.gains(still)
    with precision("float32", torch.device(device)):
        assert not layouts.gains(Wide().to(device))


@pytest.mark.parametrize("device", [pytest.param("cuda", marks=cuda)])
@pytest.mark.parametrize("viewing", [False, True])
def test_the_sum_is_the_same_in_either_order(device, viewing):
    torch.manual_seed(0)
    model = Wide(viewing).to(device)
    x, y = batch(device)
    with precision("tf32", torch.device(device)):
        repeated = RepeatedSum(model, CE, 0.1, path="fast")
        total = repeated(x, y)
        assert repeated._last is not viewing
        assert not repeated.reason
        for _ in range(2):
            again = repeated(x, y)
        wanted = clipped_sum(model, CE, x, y, 0.1, path="reference")
    assert torch.equal(total.flat(), again.flat())  # the same bits
    error = (total.flat() - wanted.flat()).norm() / wanted.flat().norm()
    assert float(error) < 1e-2
