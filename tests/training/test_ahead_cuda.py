"""On a device: draws ahead, records on the host, pieces measured to fit."""

import warnings

import pytest
import torch
from torch import nn

import reticent as rt
from reticent.data import TensorRecords, as_records, poisson_draw
from reticent.data.records import HostRecords
from reticent.data.sampling import BLOCK, poisson_draws
from reticent.data.transfer import free_memory
from reticent.methods import build
from reticent.training import memory

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
N = 3000
INPUTS = torch.randn(N, 20, generator=torch.Generator().manual_seed(0))
TARGETS = (INPUTS[:, 0] > 0).long()
DPSUR = build(
    "dpsur",
    **{"batch": 300, "clip": 1.0, "clipping": "flat", "noise": 4.0},
    **{"valid_batch": 100, "valid_noise": 1.3, "beta": 0.5},
)


def net(width=16):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(20, width), nn.Tanh(), nn.Linear(width, 2))


def options(**changes):
    return {
        "method": rt.DPSGD(batch=300, clip=1.0, noise=2.0),
        "budget": rt.Budget(500, 1e-3),
        "steps": 12,
        "optimizer": lambda p: torch.optim.SGD(p, lr=0.3, momentum=0.9),
        "coins": rt.Coins.from_seed(5),
        "device": "cuda",
        **changes,
    }


def close(one, other):
    for a, b in zip(one.model.parameters(), other.model.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("n", [1, 300, BLOCK + 1, 3 * BLOCK])
def test_draws_are_those_of_fresh_generators(n):
    """The definition, with a new generator for every block."""
    coins = rt.Coins.from_seed(3)

    def coin(block):
        generator = torch.Generator("cuda")
        generator.manual_seed(coins._derive("s", (4, 1, block), 8) - 2**63)
        return torch.rand(BLOCK, generator=generator, device="cuda", dtype=torch.float64)

    flips = torch.cat([coin(block) for block in range(-(-n // BLOCK))])[:n]
    expected = (flips < 0.25).nonzero().squeeze(1)
    assert torch.equal(poisson_draw(n, 0.25, coins, "s", 4, 1, device="cuda"), expected)
    both = poisson_draws(n, 0.25, coins, "s", [(4, 0), (4, 1)], device="cuda")
    assert torch.equal(both[1], expected)


def test_room_that_is_too_small_loses_no_record(monkeypatch):
    from reticent.data import sampling

    coins = rt.Coins.from_seed(3)
    expected = poisson_draw(N, 0.25, coins, "s", 1, device="cuda")
    monkeypatch.setattr(sampling, "capacity", lambda expected: 5)
    assert torch.equal(poisson_draw(N, 0.25, coins, "s", 1, device="cuda"), expected)


def test_the_host_never_waits_for_a_release():
    """No synchronising call at all in ten releases of DP-SGD."""
    training = rt.run(net(), (INPUTS, TARGETS), **options())
    releases = iter(training)
    next(releases), next(releases)
    with warnings.catch_warnings(record=True) as waits:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            for _ in range(9):
                next(releases)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert not [str(w.message) for w in waits if "synchronizing" in str(w.message)]


def test_the_host_runs_ahead_of_a_busy_device():
    training = rt.run(net(), (INPUTS, TARGETS), **options())
    releases = iter(training)
    for _ in range(3):
        next(releases)
    torch.cuda.synchronize()
    torch.cuda._sleep(2_000_000_000)  # about a second of work on the device
    busy = torch.cuda.Event()
    busy.record()
    next(releases)  # its draw was enqueued before
    assert not busy.query()
    torch.cuda.synchronize()


@pytest.mark.parametrize("method", [options()["method"], DPSUR], ids=["dpsgd", "dpsur"])
@pytest.mark.parametrize("microbatch", [100, 1000])
def test_records_on_the_host_give_the_same_run(method, microbatch):
    plain = options(method=method, microbatch=microbatch)
    on_host = rt.train(net(), (INPUTS, TARGETS), data_on="host", **plain)
    on_device = rt.train(net(), (INPUTS, TARGETS), data_on="device", **plain)
    close(on_host, on_device)


def test_batches_from_the_host_arrive_whole():
    """Prefetched on another stream, while this one is busy, many times over."""
    inputs = torch.arange(4000.0).repeat(64, 1).T.contiguous()
    records = HostRecords(inputs, torch.arange(4000), "cuda")
    torch.manual_seed(0)
    picks = [torch.randint(0, 4000, (int(size),)) for size in torch.randint(1, 900, (60,))]
    for number, pick in enumerate(picks):
        x, y = records.fetch(pick)
        if number + 1 < len(picks):
            records.expect(lambda pick=picks[number + 1]: pick)
        torch.cuda._sleep(200_000)
        assert x.is_cuda
        assert y.is_cuda
        assert torch.equal(x.cpu(), inputs[pick])
        assert torch.equal(y.cpu(), pick)


def test_where_records_go():
    assert type(as_records((INPUTS, TARGETS), "cuda")) is TensorRecords
    assert type(as_records((INPUTS, TARGETS), "cuda", "host")) is HostRecords


def test_resuming_repeats_the_draws(tmp_path):
    drawn = []

    def started(**changes):
        training = rt.run(net(), (INPUTS, TARGETS), **options(checkpoint_every=0, **changes))
        original = training.run.samples

        def samples(*args):
            found = original(*args)
            drawn.append((training.run.release, found[0].tolist()))
            return found

        training.run.samples = samples
        return training

    whole = started().finish()
    expected, drawn[:] = list(drawn), []
    half = started(folder=tmp_path)
    for _ in zip(range(5), half, strict=False):
        pass
    resumed = started(folder=tmp_path, resume=True, coins=None).finish()
    assert dict(drawn) == dict(expected)
    close(resumed, whole)


def test_the_chosen_piece_fits_and_a_little_more_memory_gives_a_larger_one(monkeypatch):
    wide, records = net(4096).cuda(), as_records((INPUTS, TARGETS), "cuda")
    method = rt.DPSGD(batch=100_000)
    sizes = []
    for mib in (60, 200, 500, 2000):
        monkeypatch.setattr(memory, "free_memory", lambda device, mib=mib: mib << 20)
        piece = memory.choose_microbatch(
            wide, nn.CrossEntropyLoss(), records, method, torch.device("cuda")
        )
        assert piece.bytes <= 0.8 * (mib << 20)
        sizes.append(piece.microbatch)
    assert sizes == sorted(sizes)
    assert sizes[0] < sizes[-1]
    monkeypatch.setattr(memory, "free_memory", lambda device: 10_000)
    with pytest.raises(memory.MemoryShortageError, match="microbatch = 1"):
        memory.choose_microbatch(wide, nn.CrossEntropyLoss(), records, method, torch.device("cuda"))


def test_an_automatic_piece_holds_a_whole_draw_where_there_is_room():
    result = rt.train(net(), (INPUTS, TARGETS), **options(steps=2))
    assert 300 + 6 * 300**0.5 <= result.microbatch <= 2 * 300
    assert result.piece_memory_bytes > 0
    assert free_memory(torch.device("cuda")) > result.piece_memory_bytes


def test_out_of_memory_is_explained(monkeypatch):
    training = rt.run(net(), (INPUTS, TARGETS), **options(microbatch=64))

    def fails(*_, **__):
        return torch.empty(1 << 50, device="cuda")

    monkeypatch.setattr(training.run, "clipped_sum", fails)
    with pytest.raises(memory.MemoryShortageError, match="microbatch = 64: release 0"):
        training.finish()
