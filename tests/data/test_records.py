import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from reticent.data import DatasetRecords, TensorRecords, as_records
from reticent.errors import DataError

INPUTS, TARGETS = torch.arange(12.0).reshape(6, 2), torch.arange(6)
PICK = torch.tensor([4, 1])


class Pairs(Dataset):
    def __len__(self):
        return 6

    def __getitem__(self, index):
        return INPUTS[index], int(TARGETS[index])


@pytest.mark.parametrize(
    "data",
    [
        (INPUTS, TARGETS),
        (INPUTS.numpy(), TARGETS.numpy()),
        TensorDataset(INPUTS, TARGETS),
        Pairs(),
        TensorRecords(INPUTS, TARGETS),
    ],
)
def test_every_form_gives_the_same_batches(data):
    records = as_records(data)
    inputs, targets = records.fetch(PICK)
    assert records.n == 6
    assert torch.equal(inputs, INPUTS[PICK])
    assert torch.equal(targets, TARGETS[PICK])
    assert records.one()[0].shape == (1, 2)


def test_several_inputs_stay_together():
    inputs, _ = as_records(TensorDataset(INPUTS, -INPUTS, TARGETS)).fetch(PICK)
    assert torch.equal(inputs[1], -INPUTS[PICK])
    named, _ = as_records(({"a": INPUTS, "b": TARGETS}, TARGETS)).fetch(PICK)
    assert torch.equal(named["b"], TARGETS[PICK])


def test_batched_getter_is_used():
    class Batched(Pairs):
        def __getitems__(self, indices):
            self.asked = indices
            return [self[i] for i in indices]

    data = Batched()
    as_records(data).fetch(PICK)
    assert data.asked == [4, 1]


def test_what_cannot_be_used_is_said():
    class Stream(IterableDataset):
        def __iter__(self):
            return iter([])

    class Single(Pairs):
        def __getitem__(self, index):
            return INPUTS[index]

    with pytest.raises(DataError, match="map-style"):
        as_records(Stream())
    with pytest.raises(DataError, match="pair"):
        DatasetRecords(Single()).fetch(torch.tensor([0, 1, 2]))
    with pytest.raises(DataError, match=r"shapes \(6, 2\), \(5,\)"):
        as_records((INPUTS, TARGETS[:5]))
    with pytest.raises(DataError, match="0 records"):
        as_records((INPUTS[:0], TARGETS[:0]))
    with pytest.raises(DataError, match="list"):
        as_records([INPUTS, TARGETS])
    with pytest.raises(DataError, match="str among the records"):
        as_records((INPUTS, "labels"))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_non_finite_records_are_named(bad):
    broken = INPUTS.clone()
    broken[3, 1] = bad
    with pytest.raises(DataError, match=r"1 record.*position 3"):
        as_records((broken, TARGETS))
    with pytest.raises(DataError, match="position 2"):
        as_records((INPUTS, torch.tensor([0.0, 1.0, bad, 1.0, 0.0, 0.0])))


def test_padding_to_the_longest_is_refused():
    class Words(Dataset):
        lengths = (3, 5, 3)

        def __len__(self):
            return 3

        def __getitem__(self, index):
            return torch.ones(self.lengths[index]), index

    def pad(samples):
        longest = max(len(words) for words, _ in samples)
        padded = [torch.nn.functional.pad(w, (0, longest - len(w))) for w, _ in samples]
        return torch.stack(padded), torch.tensor([label for _, label in samples])

    records = DatasetRecords(Words(), collate=pad)
    inputs, targets = records.fetch(torch.tensor([0, 2]))
    assert inputs.shape == (2, 3)
    assert targets.tolist() == [0, 2]
    with pytest.raises(DataError, match="one public shape"):
        records.fetch(torch.tensor([0, 1]))


def test_a_sparse_tensor_is_named():
    with pytest.raises(DataError, match=r"sparse_coo tensor among the records: .*to_dense"):
        as_records((INPUTS.to_sparse(), TARGETS))


def test_an_item_that_cannot_be_collated_names_the_data_set():
    class Nothing(Pairs):
        def __getitem__(self, index):
            return None

    with pytest.raises(DataError, match=r"Nothing: .*NoneType"):
        as_records(Nothing()).fetch(PICK)
