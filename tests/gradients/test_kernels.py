"""The GPU kernels against PyTorch's own operations; with TRITON_INTERPRET=1 also on the CPU."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from reticent.gradients import check, clipped_sum, kernels, norm_kernels
from reticent.gradients.rules.conv import _pixel_measures

DEVICE = "cpu" if kernels.INTERPRETED else "cuda"
ROUNDING = 1e-5 if kernels.INTERPRETED else 4e-3  # TF32 on a GPU
CE = nn.CrossEntropyLoss()

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(
        not (kernels.INTERPRETED or torch.cuda.is_available()), reason="needs a CUDA device"
    ),
    pytest.mark.skipif(kernels._triton() is None, reason="needs Triton"),
]

CONVOLUTIONS = [
    # channels in, out, kernel, stride, padding, dilation, height, width
    (3, 5, (3, 3), (1, 1), (1, 1), (1, 1), 7, 6),
    (16, 20, (3, 2), (2, 1), (1, 0), (1, 1), 8, 9),
    (4, 6, (1, 1), (1, 1), (0, 0), (1, 1), 5, 5),
    (2, 3, (5, 5), (2, 2), (2, 2), (1, 1), 11, 9),
    (3, 4, (3, 3), (1, 1), (2, 2), (2, 2), 9, 9),
    (2, 70, (3, 3), (1, 1), (1, 1), (1, 1), 4, 4),
    (3, 130, (1, 4), (1, 3), (0, 1), (1, 1), 2, 9),
    (1, 1, (1, 1), (1, 1), (0, 0), (1, 1), 1, 1),
]


@pytest.fixture(params=CONVOLUTIONS, ids=str)
def convolved(request):
    inner, outer, kernel, stride, padding, dilation, height, width = request.param
    torch.manual_seed(0)
    conv = nn.Conv2d(inner, outer, kernel, stride, padding, dilation).to(DEVICE)
    x = torch.randn(3, inner, height, width, device=DEVICE)
    g = torch.randn_like(conv(x)).detach()
    double = [
        torch.nn.grad.conv2d_weight(
            a[None].double().cpu(),
            conv.weight.shape,
            b[None].double().cpu(),
            stride,
            padding,
            dilation,
        )
        for a, b in zip(x, g, strict=True)
    ]
    return conv, x, g, torch.stack(double)


def close(got, wanted, tolerance=ROUNDING):
    error = (got.double().cpu() - wanted.double().cpu()).norm() / wanted.double().cpu().norm()
    assert float(error) <= tolerance


def test_gradients_of_a_convolution(convolved):
    conv, x, g, wanted = convolved
    assert kernels.takes_conv(conv, x, g)
    close(kernels.conv_written(conv, x, g), wanted)
    close(kernels.conv_norms(conv, x, g), wanted.flatten(1).square().sum(1))
    turned = x.to(memory_format=torch.channels_last), g.to(memory_format=torch.channels_last)
    close(kernels.conv_written(conv, *turned), wanted)
    close(kernels.conv_norms(conv, *turned), wanted.flatten(1).square().sum(1))
    close(_pixel_measures(conv, *turned)[0], wanted.flatten(1).square().sum(1))
    assert torch.equal(kernels._channels_first(turned[0]), x)


def test_norms_of_a_convolution_from_pixels(convolved):
    conv, x, g, wanted = convolved
    close(_pixel_measures(conv, x, g)[0], wanted.flatten(1).square().sum(1))


@pytest.mark.parametrize("positions", [1, 5, 32, 40, 129])
def test_gram_terms(positions):
    torch.manual_seed(0)
    a = torch.randn(3, positions, 6, device=DEVICE, dtype=torch.float64)
    b = torch.randn(3, positions, 5, device=DEVICE, dtype=torch.float64)
    left, right = a @ a.mT, b @ b.mT
    terms = kernels.gram_terms(left.float(), right.float())
    total, sizes, one, other = terms.sum(1).unbind(1)
    close(total, (left * right).sum((1, 2)), 1e-5)
    close(sizes, (left * right).abs().sum((1, 2)), 1e-5)
    close(one, left.diagonal(0, 1, 2).sum(1), 1e-5)
    close(other, right.diagonal(0, 1, 2).sum(1), 1e-5)
    norms, masses = kernels.gram_measures(terms, 0.5, 2.0)
    close(norms, total.clamp(min=0) + 0.5 * sizes + 2 * (one + other), 1e-5)
    close(masses, one * other, 1e-5)
    terms[0, 0, 0], terms[1, 0, 0] = -1e6, torch.nan
    norms, _ = kernels.gram_measures(terms, 0.0, 0.0)
    assert norms[0] == 0  # rounding below zero
    assert norms[1].isnan()  # must be noticed


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize(
    ("channels", "groups", "area"),
    [(8, 4, (5, 3)), (6, 1, (4,)), (9, 9, (2, 2)), (12, 3, (33, 9)), (64, 16, (3, 5))],
)
def test_group_norm(channels, groups, area, last):
    torch.manual_seed(0)
    layer = nn.GroupNorm(groups, channels).to(DEVICE)
    nn.init.normal_(layer.weight)
    nn.init.normal_(layer.bias)
    x = torch.randn(4, channels, *area, device=DEVICE) * 3 + 5
    g = torch.randn_like(x)
    if last:
        if len(area) == 1 or channels & (channels - 1):
            pytest.skip("channels last is for powers of two here")
        x, g = (t.to(memory_format=torch.channels_last) for t in (x, g))
    assert norm_kernels.takes_group_norm(x, groups)
    with torch.no_grad():
        y, *saved = norm_kernels.group_norm(x, layer.weight, layer.bias, groups, layer.eps)
        dx, weight, bias = norm_kernels.group_norm_back(x, g, layer.weight, *saved, groups)
    exact = layer.double()
    input_ = x.double().requires_grad_()
    output = exact(input_)
    close(y, output.detach(), 1e-5)
    close(dx, torch.autograd.grad((output * g).sum(), input_)[0], 1e-5)
    normal = F.group_norm(x.double(), groups, None, None, layer.eps)
    close(weight, (g * normal).flatten(2).sum(2), 1e-5)
    close(bias, g.flatten(2).sum(2), 1e-5)
    assert y.stride() == x.stride()


@pytest.mark.parametrize(("positions", "width"), [(5, 7), (128, 64), (1, 3), (70, 300)])
def test_layer_norm(positions, width):
    torch.manual_seed(0)
    layer = nn.LayerNorm(width).to(DEVICE)
    nn.init.normal_(layer.weight)
    nn.init.normal_(layer.bias)
    x = torch.randn(4, positions, width, device=DEVICE) * 2 + 1
    g = torch.randn_like(x)
    assert norm_kernels.takes_layer_norm(x)
    with torch.no_grad():
        y = norm_kernels.layer_norm(x, layer.weight, layer.bias, layer.eps)
        dx, weight, bias = norm_kernels.layer_norm_back(x, g, layer.weight, layer.eps)
        none, again, _ = norm_kernels.layer_norm_back(x, g, layer.weight, 1e-5, wanted=False)
    assert none is None
    assert torch.equal(again, weight)
    exact = layer.double()
    input_ = x.double().requires_grad_()
    output = exact(input_)
    close(y, output.detach(), 1e-5)
    close(dx, torch.autograd.grad((output * g).sum(), input_)[0], 1e-5)
    normal = F.layer_norm(x.double(), (width,), None, None, 1e-5)
    close(weight, (g * normal).sum(1), 1e-5)
    close(bias, g.sum(1), 1e-5)


@pytest.mark.parametrize("shape", [(2, 5, 3), (70, 9, 8), (1, 1, 1), (3, 64, 65)])
def test_layout_and_silence(shape):
    torch.manual_seed(0)
    x = torch.randn(3, *shape, device=DEVICE)
    factors = torch.tensor([0.5, 0.0, 2.0], device=DEVICE)
    along = factors.view(3, 1, 1, 1)
    broken = x.clone()
    broken[1] = torch.nan
    for scaled in (True, False):
        turned = kernels.channels_last(broken, factors, scaled=scaled)
        assert torch.equal(turned, torch.where(along > 0, x * along if scaled else x, 0.0))
        assert turned.is_contiguous(memory_format=torch.channels_last)
    kernels.zero_rows(broken, factors)
    assert torch.equal(broken, torch.where(along > 0, x, 0.0))


class Mixed(nn.Module):
    """Every kernel is taken, by layers with and without written-out gradients."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(2, 6, 3, padding=1)
        self.norm = nn.GroupNorm(2, 6)
        self.second = nn.Conv2d(6, 12, 3, stride=2, padding=1)
        self.third = nn.Conv2d(12, 24, 3, padding=1)
        self.fourth = nn.Conv2d(24, 24, 1)
        self.layer = nn.LayerNorm(24)
        self.head = nn.Linear(24, 3)

    def forward(self, x):
        x = torch.relu(self.norm(self.first(x)))
        x = torch.relu(self.third(torch.relu(self.second(x))))
        x = torch.relu(self.fourth(x))
        return self.head(self.layer(x.flatten(2).mT)).mean(1)


@pytest.mark.parametrize("last", [False, True])
def test_a_model_of_all_of_them_and_a_record_that_is_not_finite(last):
    torch.manual_seed(0)
    model = Mixed().to(DEVICE)
    x = torch.randn(5, 2, 8, 8, device=DEVICE)
    x = x.to(memory_format=torch.channels_last) if last else x
    y = torch.tensor([0, 1, 2, 0, 1], device=DEVICE)
    check(model, CE, x, y).raise_if_wrong()
    x[2] = torch.nan
    total = clipped_sum(model, CE, x, y, 0.1, path="fast")
    assert int(total.nonfinite) == 1
    assert bool(x[2].isnan().all())  # the records themselves are not written to
    rest = [0, 1, 3, 4]
    close(total.flat(), clipped_sum(model, CE, x[rest], y[rest], 0.1, path="fast").flat())
