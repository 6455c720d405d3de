"""Standardising by private statistics: sums, sensitivity, price, and what is refused."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
from dp_accounting.pld import PLDAccountant

import reticent as rt
from reticent import data, features
from reticent.errors import BudgetError, CheckpointError, DataError, OptionError
from reticent.features import Reach, standardising
from reticent.features.standardising import contributions

N = 1437
QUIET = 1e-9  # a multiplier without effect, for ledgers that keep no budget
EXTREMES = (1e30, -1e30, math.inf, -math.inf, math.nan, 0.0, 1.0, -1e-30)
REACHES = (
    Reach(),
    Reach(bound=3.0),
    Reach(bound=0.1, clip=5.0),
    Reach(bound=2.0, clip=0.3),
    Reach(bound=1e20, clip=1.0),
)


@pytest.fixture
def splits() -> data.Splits:
    return data.load("digits")


def statistics(inputs: torch.Tensor, **options: Any) -> features.ChannelStatistics:
    options = {"ledger": rt.Ledger(), "n": len(inputs), "noise": QUIET, **options}
    return features.channel_statistics(inputs, **options)


def one_by_one(inputs: torch.Tensor, reach: Reach) -> tuple[list[float], list[float]]:
    """Both sums, by loops over records, channels and positions."""
    channels = inputs.shape[1]
    means, squares = [0.0] * channels, [0.0] * channels
    longest = min(reach.clip or math.inf, reach.bound * math.sqrt(channels))
    for record in inputs.flatten(2) if inputs.dim() > 2 else inputs.unsqueeze(-1):
        values = [
            [min(max(v, -reach.bound), reach.bound) if math.isfinite(v) else 0.0 for v in channel]
            for channel in record.tolist()
        ]
        m = [sum(channel) / len(channel) for channel in values]
        s = [sum(v * v for v in channel) / len(channel) for channel in values]
        shorter = min(1.0, longest / math.sqrt(sum(s))) if sum(s) else 1.0
        means = [total + shorter * v for total, v in zip(means, m, strict=True)]
        squares = [total + shorter**2 * v for total, v in zip(squares, s, strict=True)]
    return means, squares


@pytest.mark.parametrize("reach", REACHES[:4], ids=str)
@pytest.mark.parametrize("shape", [(40, 6), (40, 3, 5), (40, 3, 4, 5)], ids=str)
@pytest.mark.parametrize("piece", [1, 1 << 25])
def test_sums_are_those_of_one_record_at_a_time(
    reach: Reach, shape: tuple[int, ...], piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standardising, "_PIECE_BYTES", piece)
    inputs = 2 * torch.randn(shape)
    inputs[3].view(-1)[:6] = torch.tensor(EXTREMES[:6])
    totals = standardising._totals(inputs, reach)
    for total, expected in zip(totals, one_by_one(inputs, reach), strict=True):
        assert total.dtype == torch.float64
        torch.testing.assert_close(
            total, torch.tensor(expected, dtype=torch.float64), rtol=1e-7, atol=1e-12
        )


def test_without_noise_to_speak_of_channels_have_mean_0_and_variance_1() -> None:
    inputs = torch.randn(5000, 4, 3) * torch.tensor([0.1, 1.0, 2.0, 3.0])[:, None] + 1
    made = statistics(inputs, reach=Reach(bound=100.0))(inputs)
    torch.testing.assert_close(made.mean((0, 2)), torch.zeros(4), atol=1e-5, rtol=0)
    torch.testing.assert_close(made.var((0, 2)), torch.ones(4), atol=1e-3, rtol=0)


@pytest.mark.parametrize("reach", REACHES, ids=str)
@pytest.mark.parametrize("shape", [(1,), (5,), (3, 4), (2, 3, 3)], ids=str)
def test_no_record_moves_the_sums_by_more_than_is_stated(
    reach: Reach, shape: tuple[int, ...]
) -> None:
    extremes = torch.tensor(EXTREMES, dtype=torch.float64)
    drawn = extremes[torch.randint(len(EXTREMES), (2000, *shape))]
    drawn = torch.cat([drawn, *(torch.full((1, *shape), v).double() for v in EXTREMES)])
    # one channel alone, and channels within the bound: where a norm comes close to its bound
    alone = torch.zeros(1, *shape, dtype=torch.float64)
    alone[0, 0] = 1e30
    drawn = torch.cat([drawn, alone, reach.bound * torch.rand(500, *shape, dtype=torch.float64)])
    base = torch.randn(3, *shape).double()
    before = standardising._totals(base, reach)
    for records in (drawn, drawn.float()):
        pair = contributions(records, reach)
        for each, total, stated in zip(pair, before, reach.sensitivities(shape[0]), strict=True):
            norms = each.norm(dim=1)
            assert bool(each.isfinite().all())
            assert float(norms.max()) <= stated
            assert float(norms.max()) >= 0.9 * stated or reach.bound > 1e10  # and no slack
            assert bool(total.isfinite().all())
    for record in drawn[::97]:  # adding one, as the sums see it
        after = standardising._totals(torch.cat([base, record[None]]), reach)
        for more, less, stated in zip(after, before, reach.sensitivities(shape[0]), strict=True):
            assert float((more - less).norm()) <= stated * (1 + 1e-9)


def test_noise_has_the_size_that_was_paid_for() -> None:
    """With no signal at all, what comes out is the noise: multiplier · sensitivity / n."""
    reach = Reach(bound=2.0, clip=3.0)
    made = statistics(torch.zeros(10, 20_000), noise=5.0, n=100_000, reach=reach, floor=1e-12)
    expected = 5.0 * 3.0 / 100_000
    assert float(made.mean.std()) == pytest.approx(expected, rel=0.03)
    assert made.options == {
        **{"noise": 5.0, "bound": 2.0, "clip": 3.0, "n": 100_000},
        **{"floor": 1e-12},
    }
    second = made.deviation.square() + made.mean.square()
    upper = second[second > 1e-9 + made.mean.square()]  # those above the floor
    assert float(upper.square().mean().sqrt()) == pytest.approx(5.0 * 3.0 * 2.0 / 100_000, rel=0.05)


def test_the_divisor_is_nominal_and_the_floor_public() -> None:
    inputs = torch.full((50, 2), 0.5)
    made = statistics(inputs, n=100)
    torch.testing.assert_close(made.mean, torch.full((2,), 0.25).double())
    wide = statistics(inputs, n=100, floor=4.0)
    torch.testing.assert_close(wide.deviation, torch.full((2,), 2.0).double())
    noisy = statistics(torch.zeros(50, 2), noise=8.0, n=100)
    floor = 8.0 * math.sqrt(2) / 100
    assert noisy.options["floor"] == pytest.approx(floor)
    assert bool((noisy.deviation >= math.sqrt(floor) * 0.999).all())


def test_values_that_are_not_finite_count_as_0() -> None:
    broken = torch.tensor([[math.nan, 1.0], [math.inf, 0.0], [-math.inf, 1.0]])
    whole = torch.tensor([[0.0, 1.0], [0.0, 0.0], [0.0, 1.0]])
    coins = rt.Coins.from_seed(1)
    one, other = (statistics(inputs, coins=coins, noise=1.0) for inputs in (broken, whole))
    assert torch.equal(one.mean, other.mean)
    assert torch.equal(one.deviation, other.deviation)


def test_both_splits_are_mapped_by_the_training_splits_statistics(splits: data.Splits) -> None:
    coins = rt.Coins.from_seed(5)
    ledger = rt.Ledger(rt.Budget(3, 1e-5))
    made = features.standardise(splits, ledger=ledger, n=N, coins=coins)
    numbers = statistics(splits.train[0], noise=standardising.NOISE, coins=coins)
    for (inputs, labels), (before, kept) in ((made.train, splits.train), (made.test, splits.test)):
        expected = (before.double() - numbers.mean) / numbers.deviation
        torch.testing.assert_close(inputs, expected.float())
        assert inputs.dtype == torch.float32
        assert torch.equal(labels, kept)
    shifted = replace(splits, test=(splits.test[0] + 1, splits.test[1]))
    again = features.standardise(shifted, ledger=rt.Ledger(), n=N, coins=coins)
    assert torch.equal(again.train[0], made.train[0])
    assert made.notes[:-1] == splits.notes
    assert "private statistics (noise 8, bound 1, clip 1, n 1437, floor" in made.notes[-1]
    assert any("comes from a stated seed" in note for note in ledger.notes)


def test_two_gaussians_are_paid_and_the_training_gets_the_rest(splits: data.Splits) -> None:
    def trained(records: Any, ledger: rt.Ledger | None, **method: Any) -> rt.Result:
        return rt.train(
            torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10)),
            records,
            method=rt.DPSGD(**method),
            budget=budget,
            steps=4,
            n=N,
            optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.5),
            ledger=ledger,
            device="cpu",
        )

    budget = rt.Budget(2, 1e-5)
    ledger, other = rt.Ledger(budget), rt.Ledger(budget)
    made = features.standardise(splits, ledger=ledger, n=N)
    lines = [(entry.purpose, entry.count) for entry in ledger.entries]
    assert lines == [("channel means", 1), ("channel variances", 1)]
    result = trained(made.train, ledger, batch=200, noise=1.3)
    accountant = PLDAccountant(value_discretization_interval=1e-3)
    accountant.compose(GaussianDpEvent(8.0), 2)
    accountant.compose(PoissonSampledDpEvent(200 / N, GaussianDpEvent(1.3)), 4)
    assert result.epsilon == pytest.approx(accountant.get_epsilon(1e-5), rel=1e-3)
    # all records in every release: noise has a closed form, and squares of 1 / noise add up
    with_statistics = trained(
        features.standardise(splits, ledger=other, n=N).train, other, batch=N
    ).method["noise"]
    alone = trained(splits.train, None, batch=N).method["noise"]
    assert 4 / with_statistics**2 + 2 / 8**2 == pytest.approx(4 / alone**2, rel=2e-3)


def test_nothing_is_released_that_cannot_be_paid(
    splits: data.Splits, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = rt.Ledger(rt.Budget(0.1, 1e-5))
    monkeypatch.setattr(standardising, "_totals", lambda *_: pytest.fail("records were read"))
    with pytest.raises(BudgetError, match="channel means, channel variances"):
        features.standardise(splits, ledger=ledger, n=N)
    assert ledger.entries == ()


def test_coins_are_used_once_and_noise_is_fresh(splits: data.Splits) -> None:
    coins = rt.Coins.fresh()
    one = statistics(splits.train[0], coins=coins, noise=8.0)
    ledger = rt.Ledger()
    with pytest.raises(OptionError, match="belong to another run"):
        statistics(splits.train[0], ledger=ledger, coins=coins, noise=8.0)
    assert ledger.entries == ()  # the refused call has paid nothing
    other = statistics(splits.train[0], noise=8.0)
    assert not torch.equal(one.mean, other.mean)
    seeded = rt.Coins.from_seed(1)
    drawn = [seeded.normal((3,), stream) for stream in (*standardising._STREAMS, "noise")]
    assert not torch.equal(drawn[0], drawn[1])


@pytest.mark.parametrize("option", ["noise", "bound", "clip", "floor"])
@pytest.mark.parametrize("value", [0, -1.0, math.nan, math.inf, "much"])
def test_numbers_that_cannot_work_are_named(
    splits: data.Splits, option: str, value: object
) -> None:
    ledger = rt.Ledger()
    wrong: dict[str, Any] = {option: value}
    with pytest.raises(OptionError, match=f"{option} = {value!r}"):
        features.standardise(splits, ledger=ledger, n=N, **wrong)
    assert ledger.entries == ()


def test_inputs_that_have_no_channels_are_refused(splits: data.Splits) -> None:
    ledger = rt.Ledger()
    with pytest.raises(OptionError, match="n = 0"):
        features.standardise(splits, ledger=ledger, n=0)
    for inputs, message in (
        (torch.zeros(5, 80, dtype=torch.long), "int64: only floats have a mean"),
        (torch.zeros(5), r"shape \(5,\)"),
        (torch.zeros(5, 3, 0), r"shape \(5, 3, 0\)"),
    ):
        with pytest.raises(DataError, match=message):
            statistics(inputs, ledger=ledger, n=5)
    with pytest.raises(DataError, match="4 channels: the statistics are of 3"):
        statistics(torch.ones(5, 3))(torch.ones(5, 4))
    assert ledger.entries == ()


def test_statistics_are_kept_with_what_they_cost(tmp_path: Path) -> None:
    path = tmp_path / "run" / "statistics.safetensors"
    ledger = rt.Ledger(rt.Budget(3, 1e-5))
    made = statistics(torch.rand(50, 3), ledger=ledger, noise=8.0)
    made.save(path, ledger)
    again, paid = features.ChannelStatistics.load(str(path))
    assert torch.equal(again.mean, made.mean)
    assert torch.equal(again.deviation, made.deviation)
    assert again.options == made.options
    assert paid.to_json() == ledger.to_json()
    content = path.read_bytes()
    for broken in (content[:-8], b"", b"{}"):
        path.write_bytes(broken)
        with pytest.raises(CheckpointError, match="cannot be read"):
            features.ChannelStatistics.load(path)
    path.unlink()
    with pytest.raises(CheckpointError, match=r"statistics\.safetensors"):
        features.ChannelStatistics.load(path)


def test_half_precision_keeps_its_kind() -> None:
    inputs = torch.rand(20, 2).half()
    assert statistics(inputs)(inputs).dtype == torch.float16
