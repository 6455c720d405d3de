"""What rounding adds to one record's contribution stays within the room that is left for it."""

import pytest
import torch
from torch import nn

import reticent as rt
from reticent.coins import Coins
from reticent.gradients import Flat, clipped_sum, rounding
from reticent.gradients.plans import FEW, SHORT, added_up
from reticent.gradients.rules.lengths import IN_A_ROW, squares
from reticent.training.run import Run

CE = nn.CrossEntropyLoss()


@pytest.mark.parametrize("count", [IN_A_ROW, 10 * IN_A_ROW + 3, 3_000_000])
@pytest.mark.parametrize("value", [0.1, 1 / 3])
def test_squares_of_many_equal_numbers_add_up(count, value):
    rows = torch.full((1, count), value)
    exact = rows.double().square().sum(1)
    assert torch.allclose(squares(rows).double(), exact, rtol=5e-6)
    rows[0, -1] = torch.inf
    assert squares(rows).isinf().all()
    rows[0, 0] = torch.nan
    assert squares(rows).isnan().all()


@pytest.mark.parametrize("width", [3, SHORT, SHORT + 1])
@pytest.mark.parametrize("count", [0, 1, FEW, 5 * FEW + 3, 400])
@pytest.mark.parametrize("models", [(), (2,)])
def test_weighted_rows_are_added_up(width, count, models):
    draws = torch.Generator().manual_seed(7)
    factors = torch.rand(*models, count, generator=draws)
    rows = torch.rand(*models, count, width, generator=draws)
    exact = torch.einsum("...b,...bp->...p", factors.double(), rows.double())
    assert torch.allclose(added_up(factors, rows).double(), exact, rtol=5e-7)


@pytest.mark.skipif(not hasattr(torch.backends.cudnn, "rnn"), reason="one switch for all of cuDNN")
@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_full_precision_is_that_of_recurrent_layers_too(device):
    """An LSTM in TF32 gives an example alone another output than in a batch: it was refused."""
    own = torch.backends.cudnn if device == "cuda" else torch.backends.mkldnn
    before = own.rnn.fp32_precision
    own.rnn.fp32_precision = "tf32" if device == "cuda" else "bf16"
    try:
        assert own.rnn.fp32_precision in rounding.allowed(torch.device(device))
        with rounding.forbidden(torch.device(device)):
            assert rounding.allowed(torch.device(device)) == {"ieee"}
            assert own.rnn.fp32_precision == "ieee"
        assert own.rnn.fp32_precision != "ieee"
    finally:
        own.rnn.fp32_precision = before


def sums_seen(monkeypatch, model, data, **options):
    """What noise is added to in one release of all records."""
    seen = []
    noisy = Run.noisy

    def watch(self, total, *args, **kwargs):
        seen.append(total.flat.clone())
        return noisy(self, total, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(Run, "noisy", watch)
        rt.train(
            model,
            data,
            method=rt.DPSGD(batch=1000, clip=1.0, noise=5.0),
            budget=rt.Budget(10, 1e-5),
            n=1000,
            steps=1,
            optimizer=lambda params: torch.optim.SGD(params, lr=0.1),
            coins=Coins.from_seed(1),
            device="cpu",
            **options,
        )
    return seen[0]


def linear():
    return nn.Linear(4, 2)


def deep():
    return nn.Sequential(nn.Linear(4, 300), nn.Tanh(), nn.Linear(300, 2))


def positions():
    return nn.Sequential(nn.Unflatten(1, (2, 2)), nn.Linear(2, 40), nn.Flatten(), nn.Linear(80, 2))


def odd():
    return nn.Sequential(nn.utils.weight_norm(nn.Linear(4, 8)), nn.Tanh(), nn.Linear(8, 2))


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("make", [linear, deep, positions, odd])
@pytest.mark.parametrize(
    "options",
    [
        {"microbatch": 4096},
        {"microbatch": 512},
        {"microbatch": 512, "path": "reference"},
        {"microbatch": 512, "path": "reference", "precision": "bf16"},
        {"microbatch": 512, "precision": "bf16"},
    ],
    ids=str,
)
def test_one_record_more_among_many_alike_moves_the_sum_by_its_bound(monkeypatch, make, options):
    """Records alike, of other lengths: gradients are aligned, and rounding does not average out.

    The record comes first, so that all others are in other pieces and places than before.
    """
    draws = torch.Generator().manual_seed(11)
    row = torch.randn(1, 4, generator=draws)
    inputs = 3 * row * (1 + 0.01 * torch.rand(20_000, 1, generator=draws))
    labels = torch.zeros(20_000, dtype=torch.long)
    more = torch.cat([row * 30, inputs]), torch.cat([labels[:1], labels])
    found = []
    for data in ((inputs, labels), more):
        torch.manual_seed(2)
        found.append(sums_seen(monkeypatch, make(), data, **options))
    assert found[0].norm() > 15_000  # they are aligned, and clipped
    assert 0.5 < (found[1] - found[0]).norm() <= 1.0


def test_sums_of_trainings_are_in_double_precision():
    x, y = torch.randn(6, 4), torch.tensor([0, 1, 0, 1, 1, 0])
    repeated = rt.gradients.RepeatedSum(linear(), CE, 1.0, wide=True)
    assert repeated(x, y).flat().dtype == torch.float64
    assert rt.gradients.RepeatedSum(linear(), CE, 1.0)(x, y).flat().dtype == torch.float32
    sums = rt.gradients.clipped_sums(linear(), CE, x, y, 1.0, [2, 4], wide=True)
    assert all(one.flat().dtype == torch.float64 for one in sums)


def test_a_number_alone_may_be_trained():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 2)
            self.scale = nn.Parameter(torch.tensor(2.0))

        def forward(self, x):
            return self.inner(x) * self.scale

    torch.manual_seed(0)
    model = Scaled()
    x, y = torch.randn(5, 4), torch.tensor([0, 1, 1, 0, 1])
    total = clipped_sum(model, CE, x, y, Flat(0.3), path="reference")
    expected = torch.zeros(())
    for i in range(5):
        model.zero_grad()
        CE(model(x[i : i + 1]), y[i : i + 1]).backward()
        norm = torch.cat([p.grad.flatten() for p in model.parameters()]).norm()
        expected = expected + model.scale.grad * min(1, 0.3 / float(norm))
    assert total.grads["scale"].shape == ()
    assert torch.allclose(total.grads["scale"], expected, rtol=1e-3)


def test_products_that_norms_and_sums_are_made_of_are_not_in_half_precision():
    """With layers in bfloat16, one record alone still counts with its bound and no more."""
    with rounding.precision("bf16", torch.device("cpu")):
        for path in ("fast", "reference"):
            x, y = torch.randn(300, 4).abs(), torch.zeros(300, dtype=torch.long)
            total = clipped_sum(linear(), CE, x, y, 1e-3, path=path).flat().norm()
            alone = [clipped_sum(linear(), CE, x[:1], y[:1], 1e-3, path=path).flat().norm()]
            assert float(alone[0]) <= 1e-3
            assert float(total) <= 300e-3
