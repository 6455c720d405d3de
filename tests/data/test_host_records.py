"""Records that stay on the host, and batches that are fetched before they are asked for."""

import threading
import warnings

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

from reticent.data import DatasetRecords, TensorRecords, as_records, records
from reticent.data.prefetch import OneAhead
from reticent.data.records import HostRecords, fingerprint
from reticent.data.transfer import free_memory
from reticent.errors import DataError, OptionError

INPUTS, TARGETS = torch.randn(50, 3, 2), torch.arange(50)
PICK = torch.tensor([40, 1, 1, 7])


def same(batch, other):
    return all(torch.equal(a, b) for a, b in zip(batch, other, strict=True))


@pytest.mark.parametrize("expected", [None, PICK, PICK[:2], torch.arange(50)])
def test_the_host_gives_what_the_device_gives(expected):
    on_host, on_device = HostRecords(INPUTS, TARGETS), TensorRecords(INPUTS, TARGETS)
    if expected is not None:
        on_host.expect(lambda: expected)
    for _ in range(2):
        assert same(on_host.fetch(PICK), on_device.fetch(PICK))
    assert on_host.fingerprint() == on_device.fingerprint()
    assert on_host.n == 50
    nested = HostRecords({"a": INPUTS, "b": (INPUTS, TARGETS)}, TARGETS)
    nested.expect(lambda: PICK)
    assert torch.equal(nested.fetch(PICK)[0]["b"][1], TARGETS[PICK])


def test_what_is_expected_is_fetched_once_in_another_thread():
    fetched = []

    def fetch(indices):
        fetched.append((threading.get_ident(), indices.tolist()))
        return indices * 2

    def fetch_early(indices):
        found = fetch(indices)
        return lambda: found

    ahead = OneAhead(fetch, fetch_early)
    here = threading.get_ident()
    ahead.expect(lambda: PICK)
    assert ahead.fetch(TARGETS).tolist() == (TARGETS * 2).tolist()  # not what was expected: kept
    assert ahead.fetch(PICK.clone()).tolist() == (PICK * 2).tolist()
    places = [thread == here for thread, _ in fetched]
    assert sorted(places) == [False, True]
    assert ahead.fetch(PICK).tolist() == (PICK * 2).tolist()  # handed over once
    assert len(fetched) == 3
    ahead.expect(lambda: None)
    assert ahead.fetch(PICK).tolist() == (PICK * 2).tolist()


def test_an_error_is_met_by_whoever_asks():
    def broken(indices):
        raise DataError("record 3 is torn")

    ahead = OneAhead(broken, broken)
    ahead.expect(lambda: PICK)
    with pytest.raises(DataError, match="torn"):
        ahead.fetch(PICK)
    # one that only the thread met is no error
    ahead = OneAhead(lambda indices: "well", broken)
    ahead.expect(lambda: PICK)
    assert ahead.fetch(PICK) == "well"


def test_a_later_expectation_replaces_an_earlier_one():
    began, go_on = threading.Event(), threading.Event()

    def slow():
        began.set()
        assert go_on.wait(10)
        return PICK

    host = HostRecords(INPUTS, TARGETS)
    host.expect(slow)
    assert began.wait(10)
    host.expect(lambda: TARGETS[:5])
    go_on.set()
    assert same(host.fetch(TARGETS[:5]), (INPUTS[:5], TARGETS[:5]))
    assert same(host.fetch(PICK), (INPUTS[PICK], TARGETS[PICK]))


class Watched(Dataset):
    def __init__(self):
        self.threads = set()

    def __len__(self):
        return 50

    def __getitem__(self, index):
        self.threads.add(threading.get_ident())
        return INPUTS[index], TARGETS[index]


@pytest.mark.parametrize("ahead", [False, True])
def test_a_data_set_is_read_from_another_thread_only_if_asked(ahead):
    data = Watched()
    read = DatasetRecords(data, ahead=ahead)
    assert read.fetches_ahead == ahead
    read.expect(lambda: PICK)
    assert same(read.fetch(PICK), (INPUTS[PICK], TARGETS[PICK]))
    assert (threading.get_ident() in data.threads) != ahead


def test_memory_mapped_arrays_stay_files(tmp_path, monkeypatch):
    np.save(tmp_path / "x.npy", INPUTS.numpy())
    np.save(tmp_path / "y.npy", TARGETS.numpy())
    arrays = tuple(np.load(tmp_path / name, mmap_mode="r") for name in ("x.npy", "y.npy"))
    monkeypatch.setattr(records, "CHUNK_BYTES", 100)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for made in (as_records(arrays), HostRecords(*arrays)):
            assert np.shares_memory(made.inputs.numpy(), arrays[0])
            assert np.shares_memory(made.targets.numpy(), arrays[1])
            assert same(made.fetch(PICK), (INPUTS[PICK], TARGETS[PICK]))
            assert made.fingerprint() == TensorRecords(INPUTS, TARGETS).fingerprint()


@pytest.mark.parametrize("chunk", [1, 24, 25, 1000, 10**6])
def test_reading_in_chunks_changes_nothing(monkeypatch, chunk):
    columns = [INPUTS, TARGETS, INPUTS.transpose(0, 1), torch.tensor(3.0), torch.zeros(0, 2)]
    expected = fingerprint(columns)
    broken = INPUTS.clone()
    broken[31, 1, 0] = broken[44, 0, 0] = np.inf
    monkeypatch.setattr(records, "CHUNK_BYTES", chunk)
    assert fingerprint(columns) == expected
    with pytest.raises(DataError, match=r"2 record.*position 31"):
        as_records((broken, TARGETS))


def test_where_records_go(monkeypatch):
    chosen = []

    class Noted(TensorRecords):
        def __init__(self, inputs, targets, device):
            chosen.append(type(self).__name__)

    class NotedOnHost(Noted):
        pass

    monkeypatch.setattr(records, "TensorRecords", Noted)
    monkeypatch.setattr(records, "HostRecords", NotedOnHost)
    size = INPUTS.nbytes + TARGETS.nbytes
    for free, on in ((2 * size, "auto"), (2 * size - 1, "auto"), (0, "device"), (10**9, "host")):
        monkeypatch.setattr(records, "free_memory", lambda device, free=free: free)
        as_records((INPUTS, TARGETS), "cuda", on)
    assert chosen == ["Noted", "NotedOnHost", "Noted", "NotedOnHost"]
    as_records((INPUTS, TARGETS), "cpu", "host")  # the host is the device
    assert chosen[-1] == "Noted"


def test_places_that_make_no_sense_are_refused():
    with pytest.raises(OptionError, match="data_on = 'moon': must be one of auto, device, host"):
        as_records((INPUTS, TARGETS), on="moon")
    with pytest.raises(OptionError, match="data_on = 'device': Watched says itself"):
        as_records(Watched(), on="device")
    with pytest.raises(OptionError, match="data_on = 'host': TensorRecords says itself"):
        as_records(TensorRecords(INPUTS, TARGETS), on="host")
    assert isinstance(as_records(Watched(), on="host"), DatasetRecords)


def test_free_memory_is_no_more_than_the_share_of_this_process(monkeypatch):
    """A device of 100 with 60 free; this process has reserved 10 and uses 7."""
    numbers = {"mem_get_info": (60, 100), "memory_reserved": 10, "memory_allocated": 7}
    for name, value in numbers.items():
        monkeypatch.setattr(torch.cuda, name, lambda device, value=value: value)
    for share, expected in [(1.0, 63), (0.5, 43), (0.1, 3), (0.05, 3)]:
        monkeypatch.setattr(
            torch.cuda.memory, "get_per_process_memory_fraction", lambda number, s=share: s
        )
        assert free_memory(torch.device("cuda")) == expected
