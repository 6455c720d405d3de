"""Physical pieces that fit, chosen on made-up records."""

import json

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

import reticent as rt
from reticent.data import as_records
from reticent.methods import build
from reticent.training import host_memory, memory
from reticent.training.memory import MemoryShortageError, Tally, choose_microbatch, largest
from reticent.training.run import rounder

from .problem import INPUTS, TARGETS, model, options, weights

CPU = torch.device("cpu")


def straight(size):
    return 1000 + 10 * size


def as_it_is(size):
    return size


@pytest.mark.parametrize("verify", [False, True])
@pytest.mark.parametrize("bend", [0, 3])
def test_the_largest_that_fits_grows_with_the_limit(bend, verify):
    def bytes_of(size):
        return straight(size) - bend * min(size, 16)  # cheaper at first

    before = 0
    for limit in range(1020, 8000, 37):
        size, taken = largest(bytes_of, limit, 512, (4, 16), down=as_it_is, verify=verify)
        assert before <= size <= 512 or (bend and verify and size > 0.9 * before)
        assert taken <= limit
        if verify:
            assert bytes_of(size) == taken
        if not bend:
            assert size == min((limit - 1000) // 10, 512)
            assert taken == straight(size)
        before = size
    assert before == 512


def test_without_a_limit_it_is_the_most():
    assert largest(straight, None, 512, (4, 16), down=as_it_is)[0] == 512
    assert largest(straight, None, 3, (4, 16), down=as_it_is) == (3, 3030)
    assert largest(lambda size: 7, 10, 512, (4, 16), down=as_it_is)[0] == 512


@pytest.mark.parametrize("error", [torch.OutOfMemoryError, MemoryError])
@pytest.mark.parametrize("room", [1, 2, 5, 40, 100])
def test_sizes_that_do_not_fit_are_halved(room, error):
    """A device whose allocator says no earlier than its free memory suggests."""
    tried = []

    def measure(size):
        tried.append(size)
        if size > room:
            raise error("no")
        return size

    size, _ = largest(measure, 10**9, 160, (8, 32, 128), down=memory._rounded_down, verify=True)
    assert room / 2.2 < size <= room
    assert tried[-1] <= size or size in tried


def test_not_even_one_record():
    with pytest.raises(MemoryShortageError, match="microbatch = 1: one record alone takes 2 MiB"):
        largest(lambda size: size << 21, 1 << 20, 512, (4, 16), down=as_it_is)

    def never(size):
        raise torch.OutOfMemoryError("tried to allocate 3 GiB")

    with pytest.raises(MemoryError, match=r"microbatch = 1: .*3 GiB"):
        largest(never, 1 << 20, 512, (4, 16), down=as_it_is)

    def broken(size):
        raise KeyError("another error")

    with pytest.raises(KeyError, match="another"):
        largest(broken, 1 << 20, 512, (4, 16), down=as_it_is)


def test_no_piece_is_padded_beyond_the_one_that_was_tried():
    for size in range(1, 3000):
        down = memory._rounded_down(size)
        assert size * 15 / 16 <= down <= size
        assert rounder(down) == down
        assert all(rounder(less) <= down for less in (down - 1, max(down - 20, 1), down // 2))


def test_what_methods_ask_for_at_once():
    assert memory.asked_at_once(rt.DPSGD(batch=100)) == (160, 1)
    several = build(
        "dpsur", batch=64, clip=1.0, clipping="flat", noise=4.0, valid_batch=20, together=3
    )
    assert memory.asked_at_once(several) == (112, 3)


def test_live_tensors_are_counted():
    with Tally() as tally:
        a = torch.zeros(1000, dtype=torch.float64)  # 8000
        b = a.view(10, 100)[2:]  # the same memory
        c = a + 1  # 16000
        del a, c
        d = b * 2  # 8000 + 6400
    assert tally.peak == 16000
    with Tally() as tally:
        e = [torch.zeros(100) for _ in range(5)]
    assert tally.peak == 2000
    assert len(e) + len(d) > 0


def test_saved_activations_are_counted():
    net = nn.Sequential(*(nn.Sequential(nn.Linear(100, 100), nn.Tanh()) for _ in range(6)))
    x = torch.randn(50, 100)
    with Tally() as tally:
        net(x).sum().backward()
    activations, parameters = 6 * 50 * 100 * 4, 6 * (100 * 100 + 100) * 4
    assert activations < tally.peak < 2 * activations + parameters + 3 * 50 * 100 * 4


def test_pieces_shrink_with_the_memory(monkeypatch):
    net, records = nn.Linear(5, 2), as_records((INPUTS, TARGETS))
    method, loss = rt.DPSGD(batch=30), nn.CrossEntropyLoss()

    def chosen(free):
        monkeypatch.setattr(memory, "available", lambda: free)
        return choose_microbatch(net, loss, records, method, CPU)

    whole = chosen(None)
    assert whole.microbatch == 512
    sizes = [chosen(free).microbatch for free in range(10_000, 10 * whole.bytes, 5_000)]
    assert sizes == sorted(sizes)
    assert sizes[-1] == 512
    assert {1, 64, 256} & set(sizes)
    assert all(size & (size - 1) == 0 for size in sizes)
    assert all(4 * chosen(free).bytes <= free for free in (20_000, 100_000, 400_000))
    with pytest.raises(MemoryShortageError, match="microbatch = 1"):
        chosen(1000)


def test_pieces_on_a_cpu_keep_tensors_small(monkeypatch):
    net = nn.Sequential(nn.Embedding(1000, 7), nn.Flatten(), nn.Linear(21, 40), nn.Linear(40, 2))
    records = as_records((torch.randint(0, 1000, (64, 3)), torch.zeros(64, dtype=torch.long)))
    loss = nn.CrossEntropyLoss()

    def chosen():
        return choose_microbatch(net, loss, records, rt.DPSGD(batch=30), CPU)

    def sizes(count):
        inputs = torch.randint(0, 1000, (count, 3))
        with Tally() as tally:
            rt.gradients.clipped_sum(net, loss, inputs, torch.zeros(count, dtype=torch.long), 1.0)
        return tally.sizes

    assert chosen().microbatch == 512
    bytes_of = {}
    for limit in (1_200, 10_000, 26_000):  # all of them are less than the table of words
        monkeypatch.setattr(memory, "MOST_IN_A_TENSOR", limit)
        count = chosen().microbatch
        bytes_of[count] = chosen().bytes
        assert 1 < count < 512
        assert max(sizes(count) - sizes(count - 1)) <= limit < max(sizes(2 * count) - sizes(count))
    monkeypatch.setattr(memory, "MOST_IN_A_TENSOR", 1)
    assert chosen().microbatch == 1
    few, *_, many = sorted(bytes_of)
    assert 0 < bytes_of[few] < bytes_of[many] < bytes_of[few] * many / few  # not all of it grows


def test_a_tensor_as_large_as_a_weight_grows_all_the_same(monkeypatch):
    """With 16 inputs, activations of 16 records are as large as the weight."""
    loss = nn.CrossEntropyLoss()
    monkeypatch.setattr(memory, "MOST_IN_A_TENSOR", 2**17)
    found = []
    for inputs in (15, 16, 17):
        net = nn.Sequential(nn.Linear(inputs, 500), nn.ReLU(), nn.Linear(500, 2))
        records = as_records((torch.randn(40, inputs), torch.zeros(40, dtype=torch.long)))
        found.append(choose_microbatch(net, loss, records, rt.DPSGD(batch=30), CPU).microbatch)
    assert found == [32, 32, 32]  # products of a linear layer are in double precision


def test_choosing_leaves_no_trace():
    net = nn.Sequential(nn.Linear(5, 6), nn.Dropout(0.5), nn.Linear(6, 2))
    before = {name: value.clone() for name, value in net.state_dict().items()}
    torch.manual_seed(3)
    expected = torch.randn(3)
    torch.manual_seed(3)
    choose_microbatch(
        net, nn.CrossEntropyLoss(), as_records((INPUTS, TARGETS)), rt.DPSGD(batch=30), CPU
    )
    assert torch.equal(torch.randn(3), expected)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert all(parameter.grad is None for parameter in net.parameters())
    assert net.training


def test_no_record_is_looked_at():
    class Few(Dataset):
        def __init__(self):
            self.asked = set()

        def __len__(self):
            return 1000

        def __getitem__(self, index):
            self.asked.add(index)
            return torch.full((5,), float("nan")), 0

    data = Few()
    piece = choose_microbatch(
        nn.Linear(5, 2), nn.CrossEntropyLoss(), as_records(data), rt.DPSGD(batch=30), CPU
    )
    assert data.asked == {0}  # for its shape
    other = as_records((INPUTS, TARGETS))
    assert piece == choose_microbatch(
        nn.Linear(5, 2), nn.CrossEntropyLoss(), other, rt.DPSGD(batch=30), CPU
    )


def test_a_model_that_cannot_be_counted_is_trained_all_the_same(monkeypatch):
    def broken(*_, **__):
        raise NotImplementedError

    monkeypatch.setattr(Tally, "__torch_dispatch__", broken)
    result = rt.train(model(), (INPUTS, TARGETS), **options(steps=1))
    assert result.microbatch == 512
    assert result.piece_memory_bytes is None


def test_a_resumed_run_keeps_its_pieces(tmp_path, monkeypatch):
    def net():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(5, 6), nn.Dropout(0.5), nn.Linear(6, 2))

    monkeypatch.setattr(memory, "available", lambda: 20_000)
    plain = options(checkpoint_every=0)
    whole = rt.train(net(), (INPUTS, TARGETS), **plain)
    assert 1 <= whole.microbatch < 30
    half = rt.run(net(), (INPUTS, TARGETS), **plain, folder=tmp_path)
    for _ in zip(range(3), half, strict=False):
        pass
    monkeypatch.setattr(memory, "available", lambda: None)  # now 512 would be chosen
    resumed = rt.train(net(), (INPUTS, TARGETS), **plain, folder=tmp_path, resume=True)
    assert resumed.microbatch == whole.microbatch
    assert resumed.piece_memory_bytes == whole.piece_memory_bytes
    assert torch.equal(weights(resumed), weights(whole))
    written = json.loads((tmp_path / "run.json").read_text())
    assert written["microbatch"] == whole.microbatch
    assert written["piece_memory_bytes"] == whole.piece_memory_bytes


def test_the_peak_of_the_run_is_not_published(tmp_path):
    training = rt.run(model(), (INPUTS, TARGETS), **options(folder=tmp_path))
    training.finish()
    assert training.peak_memory_bytes > 2**20
    assert "peak" not in (tmp_path / "run.json").read_text()


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory"),
        MemoryError(),
    ],
)
def test_a_release_that_ran_out_of_memory_is_not_repeated(monkeypatch, error):
    training = rt.run(model(), (INPUTS, TARGETS), **options(microbatch=17))
    releases = iter(training)
    next(releases)

    def fails(*_, **__):
        raise error

    monkeypatch.setattr(training.run, "clipped_sum", fails)
    with pytest.raises(MemoryShortageError, match="microbatch = 17: release 1 ran out of memory"):
        next(releases)
    monkeypatch.undo()
    with pytest.raises(RuntimeError, match="failed half-way"):
        next(iter(training))


def test_other_errors_stay_what_they_are(monkeypatch):
    training = rt.run(model(), (INPUTS, TARGETS), **options())

    def fails(*_, **__):
        raise RuntimeError("a bug")

    monkeypatch.setattr(training.run, "clipped_sum", fails)
    with pytest.raises(RuntimeError, match="a bug"):
        training.finish()


def write(root, files):
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


GIB = 2**30
MEMINFO = {"proc/meminfo": f"MemTotal: 9 kB\nMemAvailable:   {8 * 2**20} kB\n"}
VERSION_2 = {
    "proc/self/cgroup": "0::/jobs/one\n",
    "sys/fs/cgroup/jobs/memory.max": f"{4 * GIB}\n",
    "sys/fs/cgroup/jobs/memory.current": f"{3 * GIB}\n",
    "sys/fs/cgroup/jobs/memory.stat": f"anon 5\ninactive_file {GIB // 2}\n",
    "sys/fs/cgroup/jobs/one/memory.max": "max\n",
    "sys/fs/cgroup/jobs/one/memory.current": f"{GIB}\n",
}
VERSION_1 = {
    "proc/self/cgroup": "5:cpu,cpuacct:/x\n7:memory:/outside/of/here\n",
    "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{2 * GIB}\n",
    "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{GIB}\n",
    "sys/fs/cgroup/memory/memory.stat": "total_inactive_file 4096\n",
}
ENDLESS = {**VERSION_1, "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n"}


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, 8 * GIB),
        (VERSION_2, 4 * GIB - 3 * GIB + GIB // 2),
        (VERSION_1, GIB + 4096),
        (ENDLESS, 8 * GIB),
    ],
)
def test_the_narrowest_limit_counts(tmp_path, files, expected):
    write(tmp_path, {**MEMINFO, **files})
    assert host_memory.available(tmp_path) == expected


def test_the_limit_of_the_address_space_counts(tmp_path, monkeypatch):
    resource = pytest.importorskip("resource")
    write(tmp_path, {**MEMINFO, "proc/self/statm": "1000 1 1 1 0 1 0\n"})
    page = resource.getpagesize()
    monkeypatch.setattr(resource, "getrlimit", lambda which: (5000 * page, 5000 * page))
    assert host_memory.available(tmp_path) == 4000 * page
