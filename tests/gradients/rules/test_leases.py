"""Memory that is used again: never while somebody still reads it."""

import threading

import pytest
import torch
from torch import nn

from reticent.gradients import clipped_sum
from reticent.gradients.rules import leases
from reticent.gradients.rules.leases import Lease
from reticent.gradients.rules.recurrent import Plain, stepwise

LIKE = torch.empty(0)
MIB = 2**18  # floats


@pytest.fixture(autouse=True)
def nothing_spare():
    leases.forget()
    yield
    leases.forget()


def test_memory_of_a_lease_that_ended_is_used_again():
    lease = Lease()
    first = lease.empty(LIKE, 4, MIB)
    place = first.data_ptr()
    del lease
    again = Lease()
    assert again.empty(LIKE, MIB, 3).data_ptr() == place  # a little smaller
    assert again.empty(LIKE, 4, MIB).data_ptr() != place  # in use


def test_two_leases_share_nothing():
    one, other = Lease(), Lease()
    tensors = [each.empty(LIKE, 2, MIB).fill_(k) for k, each in enumerate((one, other, one))]
    assert [float(t.unique()) for t in tensors] == [0.0, 1.0, 2.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64])
def test_memory_has_the_shape_and_type_asked_for(dtype):
    for rows in (1, 2**19, 2**20 + 1):
        found = Lease().empty(torch.empty(0, dtype=dtype), rows, 3)
        assert found.shape == (rows, 3)
        assert found.dtype == dtype
        assert found.is_contiguous()


def test_much_larger_memory_is_not_taken_for_little():
    lease = Lease()
    lease.empty(LIKE, 16, MIB)
    del lease
    kept = leases.spare_bytes()
    lease = Lease()
    lease.empty(LIKE, 4, MIB)
    assert leases.spare_bytes() == kept


def test_no_more_than_the_limit_is_kept(monkeypatch):
    monkeypatch.setattr(leases, "KEPT", 10 * 2**20)
    lease = Lease()
    for _ in range(3):
        lease.empty(LIKE, 4, MIB)
    del lease
    assert leases.spare_bytes() == 8 * 2**20
    lease = Lease()
    lease.empty(LIKE, 64, MIB)  # alone too large
    del lease
    assert leases.spare_bytes() == 0


def test_threads_never_get_the_same_memory():
    wrong: list[int] = []

    def work(own: int) -> None:
        for _ in range(200):
            lease = Lease()
            both = [lease.empty(LIKE, MIB + 8 * k).fill_(own) for k in range(2)]
            wrong.extend(own for each in both if bool((each != own).any()))
            del both, lease

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


KINDS = {"LSTM": nn.LSTM, "GRU": nn.GRU, "RNN": nn.RNN}


class Reader(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.layer = KINDS[kind](8, 16, batch_first=True, bidirectional=True, num_layers=2)
        self.last = nn.Linear(32, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.layer(x)[0].mean(1))


@pytest.mark.parametrize("kind", KINDS)
def test_layers_that_use_memory_again_sum_the_same(kind, monkeypatch):
    """Batches of several sizes, two models in turns."""
    monkeypatch.setattr(leases, "SMALLEST", 2**16)
    generator = torch.Generator().manual_seed(3)
    torch.manual_seed(5)
    models = [Reader(kind), Reader(kind)]
    loss = nn.CrossEntropyLoss()

    def sums():
        found = []
        for rows in (96, 80, 100, 64):
            x = torch.randn(rows, 40, 8, generator=generator)
            y = torch.randint(2, (rows,), generator=generator)
            found += [clipped_sum(model, loss, x, y, clip=0.1).flat() for model in models]
        return found

    again = sums()
    assert leases.spare_bytes() > 0
    generator.manual_seed(3)
    monkeypatch.setattr(leases, "SMALLEST", 2**60)  # never
    for one, other in zip(again, sums(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_results_stand_after_the_memory_went_to_others(kind, monkeypatch):
    """Outputs, states and gradients of a layer are nobody else's."""
    monkeypatch.setattr(leases, "SMALLEST", 2**10)
    torch.manual_seed(1)
    layer = KINDS[kind](8, 16, batch_first=True, bidirectional=True).requires_grad_(False)
    x = torch.randn(96, 40, 8, requires_grad=True)
    h = torch.randn(2, 96, 16, requires_grad=True)
    hx = (h, torch.randn(2, 96, 16)) if kind == "LSTM" else h

    output, last = stepwise(layer, Plain(), x, hx)
    state = last[0] if kind == "LSTM" else last
    gradients = torch.autograd.grad(output.sum() + state.sum(), [x, h])
    found = [output, state, *gradients]
    before = [each.detach().clone() for each in found]
    del output, last, state  # the node goes, its memory is free
    assert leases.spare_bytes() > 0
    for whole in leases._spare:
        whole.fill_(255)  # as floats, none
    for one, other in zip(found, before, strict=True):
        torch.testing.assert_close(one.detach(), other, rtol=0, atol=0)


def test_the_same_gradient_can_be_taken_twice():
    torch.manual_seed(1)
    layer = nn.LSTM(8, 16, batch_first=True).requires_grad_(False)
    x = torch.randn(96, 80, 8, requires_grad=True)
    output, _ = stepwise(layer, Plain(), x)
    first = torch.autograd.grad(output.sum(), x, retain_graph=True)[0]
    stepwise(layer, Plain(), torch.randn_like(x))  # would take the memory, were it free
    second = torch.autograd.grad(output.sum(), x)[0]
    torch.testing.assert_close(first, second, rtol=0, atol=0)


class Keeps(Plain):
    """A tape that keeps all it is given, for longer than any step does."""

    def __init__(self) -> None:
        self.kept: list[torch.Tensor] = []

    def watch(self, y):
        y.requires_grad_().register_hook(self.kept.append)
        return y, None

    def also(self, x, edges, weight, bias):
        self.kept.append(x)

    def note(self, rule, x, edges, targets):
        self.kept.append(x)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_recorded_stands_after_the_memory_went_to_others(kind, monkeypatch):
    monkeypatch.setattr(leases, "SMALLEST", 2**16)
    torch.manual_seed(1)
    layer = KINDS[kind](8, 16, batch_first=True, bidirectional=True).requires_grad_(False)
    tape = Keeps()
    stepwise(layer, tape, torch.randn(96, 40, 8))[0].sum().backward()
    assert len(tape.kept) == (8 if kind == "GRU" else 4)  # inputs and gradients of every use
    before = [each.clone() for each in tape.kept]
    assert leases.spare_bytes() > 0
    lease = Lease()
    for _ in range(8):
        for size in (1, 2, 4, 8, 16, 32, 64):
            lease.empty(LIKE, size, MIB // 8).fill_(torch.nan)
    for one, other in zip(tape.kept, before, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)
