from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

from reticent.errors import ModelError
from reticent.gradients import clipped_sum

from .networks import LoRA, falls_back, rows
from .oracle import agrees, snapshot, unchanged

CE = nn.CrossEntropyLoss()


def test_lora_subclass_of_linear():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(inplace=True), LoRA(6, 3)).double()
    x, y = rows()
    agrees(model, CE, x, y)
    assert "2.down" in clipped_sum(model, CE, x, y, 1.0).grads
    assert "2.weight" not in clipped_sum(model, CE, x, y, 1.0).grads


def test_a_subclass_that_keeps_forward_uses_the_rule():
    class Named(nn.Linear):
        label = "mine"

    torch.manual_seed(0)
    agrees(nn.Sequential(Named(4, 3)).double(), CE, *rows())


def test_a_subclass_with_its_own_forward_is_not_taken_for_its_parent():
    class Doubled(nn.Linear):
        def forward(self, x):
            return 2 * super().forward(x)

    class Standardised(nn.Conv1d):
        def forward(self, x):
            return self._conv_forward(x, self.weight - self.weight.mean(), self.bias)

    torch.manual_seed(0)
    model = nn.Sequential(
        Doubled(4, 6), nn.Tanh(), nn.Unflatten(1, (2, 3)), Standardised(2, 2, 2), nn.Flatten()
    )
    agrees(model.double(), CE, *rows())


def test_custom_module_with_its_own_parameters():
    class Gate(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.randn(6))
            self.inner = nn.Linear(6, 6)
            self.unused = nn.Parameter(torch.randn(2))

        def forward(self, x):
            return x * torch.sigmoid(self.inner(x)) * self.scale

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), Gate(), nn.PReLU(), nn.Linear(6, 3)).double()
    agrees(model, CE, *rows())


def test_stray_parameter_in_the_model_itself():
    class Tagged(nn.Module):
        def __init__(self):
            super().__init__()
            self.cls = nn.Parameter(torch.randn(1, 1, 4))
            self.mix, self.head = nn.Linear(4, 4), nn.Linear(4, 3)

        def forward(self, x):
            h = torch.cat([self.cls.expand(len(x), -1, -1), x.unsqueeze(1)], 1)
            return self.head(torch.tanh(self.mix(h)).mean(1))

    torch.manual_seed(0)
    falls_back(Tagged().double(), *rows(), "cls")


def test_parameter_used_outside_its_module():
    class Escapes(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.head = nn.Linear(4, 4), nn.Linear(4, 3)

        def forward(self, x):
            return self.head(torch.tanh(self.layer(x)) + F.linear(x, self.layer.weight))

    torch.manual_seed(0)
    falls_back(Escapes().double(), *rows(), "layer.weight", "outside")


def test_parameter_penalised_in_the_loss_is_not_missed():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3)).double()

    def penalised(output, target):
        return CE(output, target) + model[0].weight.square().sum()

    for path in ("auto", "fast", "reference"):
        with pytest.raises(ModelError, match=r"penalty|outside"):
            clipped_sum(model, penalised, *rows(), 1.0, path=path)


def test_layers_run_under_vmap_by_the_model_itself():
    class Mapped(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.head = nn.Linear(4, 4), nn.Linear(4, 3)

        def forward(self, x):
            return self.head(torch.vmap(self.layer)(x))

    torch.manual_seed(0)
    falls_back(Mapped().double(), *rows(), "layer", "torch.func")


def test_residual_connections_and_in_place_sums():
    class Residual(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)

        def forward(self, x):
            h = self.a(x)
            h += x
            h = h + self.b(F.relu(h))
            h *= 2
            out = self.head(h)
            out[:, 0] += 1
            return out

    torch.manual_seed(0)
    agrees(Residual().double(), CE, *rows())


@pytest.mark.parametrize("path", ["auto", "fast"])
def test_an_input_modified_after_it_was_read(path):
    class Overwrites(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 3)

        def forward(self, x):
            h = self.a(x)
            out = self.b(h)
            h.add_(1)
            return out

    model = Overwrites().double()
    before = snapshot(model)
    with pytest.raises(ModelError, match=r"'b' .* modified in place"):
        clipped_sum(model, CE, *rows(), 1.0, path=path)
    unchanged(model, before)


def test_part_of_the_model_without_gradients():
    class Half(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 3)

        def forward(self, x):
            with torch.no_grad():
                h = self.a(x)
            return self.b(h)

    torch.manual_seed(0)
    model = Half().double()
    agrees(model, CE, *rows())
    assert (clipped_sum(model, CE, *rows(), 1.0).grads["a.weight"] == 0).all()


class Checkpointed(nn.Module):
    def __init__(self, reentrant):
        super().__init__()
        self.first, self.head = nn.Linear(4, 4), nn.Linear(4, 3)
        self.block = nn.Sequential(nn.Linear(4, 8), nn.ReLU(inplace=True), nn.Linear(8, 4))
        self.reentrant = reentrant

    def forward(self, x):
        h = checkpoint(self.block, self.first(x), use_reentrant=self.reentrant)
        return self.head(h)


def test_checkpointing():
    torch.manual_seed(0)
    agrees(Checkpointed(False).double(), CE, *rows(), paths=("fast",))
    model = Checkpointed(True).double()
    before = snapshot(model)
    with pytest.raises(ModelError, match="use_reentrant=False"):
        clipped_sum(model, CE, *rows(), 1.0)
    unchanged(model, before)


def test_parametrized_modules_are_differentiated_as_a_whole():
    torch.manual_seed(0)
    model = nn.Sequential(
        parametrizations.weight_norm(nn.Linear(4, 6)), nn.Tanh(), nn.Linear(6, 3)
    ).double()
    agrees(model, CE, *rows())


def test_custom_modules_the_fast_path_cannot_run():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.randn(4))

        def forward(self, a, b):
            return a * self.w + b

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.two, self.head = Two(), nn.Linear(4, 3)

        def forward(self, x):
            return self.head(self.two(x, x * 2))

    torch.manual_seed(0)
    falls_back(Model().double(), *rows(), "two", "one tensor")


def test_randomness_in_a_custom_module_is_not_drawn_twice():
    class Noisy(nn.Module):
        def __init__(self, functional):
            super().__init__()
            self.w = nn.Parameter(torch.randn(4))
            self.drop = nn.Identity() if functional else nn.Dropout(0.5)
            self.functional = functional

        def forward(self, x):
            x = F.dropout(x, 0.5) if self.functional else self.drop(x)
            return x * self.w

    x, y = rows()
    for functional in (True, False):
        model = nn.Sequential(Noisy(functional), nn.Linear(4, 3)).double()
        result = clipped_sum(model, CE, x, y, 1.0)
        assert result.path == "reference"
        assert "random" in result.reason
    model = nn.Sequential(Noisy(False), nn.Linear(4, 3)).double().eval()
    agrees(model, CE, x, y)


def test_a_layer_fed_more_rows_than_examples():
    class Merged(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(2, 2), nn.Linear(4, 3)

        def forward(self, x):
            return self.b(torch.tanh(self.a(x.reshape(-1, 2))).reshape(len(x), 4))

    torch.manual_seed(0)
    falls_back(Merged().double(), *rows(), "'a'", "dimension 0")


def test_an_overridden_forward_is_respected_and_kept():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3)).double()
    plain = model[0].forward
    model[0].forward = lambda x: plain(x) * 2
    mine = model[0].forward
    agrees(model, CE, *rows())
    assert model[0].forward is mine


def test_direct_calls_of_forward_are_seen():
    class Direct(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 3)

        def forward(self, x):
            return self.b.forward(torch.tanh(self.a.forward(x)))

    torch.manual_seed(0)
    agrees(Direct().double(), CE, *rows())


def test_other_layers_without_a_rule():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Unflatten(1, (1, 2, 2)),
        nn.ConvTranspose2d(1, 3, 2),
        nn.PReLU(3),
        nn.Flatten(),
        nn.Linear(27, 3),
    ).double()
    agrees(model, CE, *rows())


def test_dropout_is_drawn_once_and_differs_between_examples():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 50), nn.Dropout(0.5), nn.Linear(50, 3)).double()
    x, y = torch.ones(2, 4, dtype=torch.float64), torch.tensor([1, 1])
    for path in ("fast", "reference"):
        norms = clipped_sum(model, CE, x, y, 1.0, path=path).norms
        assert norms[0] != norms[1]
