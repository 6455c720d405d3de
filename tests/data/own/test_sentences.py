"""A column of texts by an encoder that the user brings."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from reticent import data
from reticent.data.own.columns import Column
from reticent.data.own.encoding import encode
from reticent.data.own.recorded import Recorded
from reticent.data.own.tables import table_of
from reticent.encoders import TextEncoder, encoder_digest
from reticent.errors import DataError, OptionError

from ...small_encoder import WIDTH, tensors, write_encoder


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    where = write_encoder(tmp_path / "encoder")
    monkeypatch.setenv("RETICENT_ENCODER", str(where))
    return where


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    path = tmp_path / "notes.jsonl"
    texts = ["good films", "bad film", "", "Don't! good"] * 10
    lines = [
        {"note": text, "age": 40 + k, "ill": "yes" if k % 2 else "no"}
        for k, text in enumerate(texts)
    ]
    path.write_text("\n".join(json.dumps(line) for line in lines))
    return path


def test_cells_become_what_the_encoder_makes_of_them(folder: Path) -> None:
    texts = ["good films", None, "Don't! good", "  ", 7, math.nan]
    column = Column("note", "sentences", buckets=WIDTH, encoder=encoder_digest())
    found = encode(table_of({"note": texts}), [column])
    expected = TextEncoder(folder)(["good films", "Don't! good", "7"])
    torch.testing.assert_close(found[[0, 2, 4]], expected)
    assert not found[[1, 3, 5]].any()


def test_a_column_beside_others(folder: Path, notes: Path) -> None:
    splits = data.from_file(
        notes,
        target="ill",
        classes="no,yes",
        columns={"note": "sentences"},
        bounds={"age": (0, 120)},
    )
    assert splits.form == "table"
    assert splits.train[0].shape[1] == WIDTH + 2
    (line,) = (line for line in splits.lines if line.kind == "sentences")
    assert (line.how, line.cost) == (
        f"{WIDTH} numbers by the encoder of $RETICENT_ENCODER, length 1",
        "free if no record taught the encoder",
    )
    assert any("that none of the records taught it" in note for note in splits.notes)
    alone = {"note": "sentences", "age": "ignore"}
    alone = data.from_file(notes, target="ill", classes="no,yes", columns=alone)
    assert alone.form == "text"


def test_later_records_need_the_same_encoder(
    folder: Path, notes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    splits = data.from_file(
        notes, target="ill", classes="no,yes", columns={"note": "sentences", "age": "ignore"}
    )
    told = json.loads(json.dumps(splits.recorded.to_json()))
    assert str(folder) not in json.dumps(told)
    again = Recorded.from_json(told)
    assert again == splits.recorded
    new = notes.with_name("new.jsonl")
    new.write_text(json.dumps({"note": "bad film"}))
    expected = TextEncoder(folder)(["bad film"])
    torch.testing.assert_close(again.read(new).inputs, expected)
    save_file({name: 2 * one for name, one in tensors().items()}, folder / "model.safetensors")
    with pytest.raises(
        DataError, match=r"column 'note': .*fingerprint .*encoder, which holds another"
    ):
        again.read(new)
    monkeypatch.setenv("RETICENT_ENCODER", str(notes.parent))
    with pytest.raises(DataError, match=r"\$RETICENT_ENCODER = .*, which holds none"):
        again.read(new)
    monkeypatch.delenv("RETICENT_ENCODER")
    with pytest.raises(DataError, match=r"\$RETICENT_ENCODER names none"):
        again.read(new)


def test_an_encoder_must_be_named(
    notes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"target": "ill", "classes": "no,yes", "columns": {"note": "sentences"}}
    monkeypatch.delenv("RETICENT_ENCODER", raising=False)
    with pytest.raises(OptionError, match="columns = 'note:sentences': name a sentence encoder"):
        data.from_file(notes, **options)
    monkeypatch.setenv("RETICENT_ENCODER", str(tmp_path))
    with pytest.raises(OptionError, match=r"columns = .*: \$RETICENT_ENCODER = .*no config.json"):
        data.from_file(notes, **options)
    wrong = {**options, "columns": {"note": "sentences:128"}}
    with pytest.raises(OptionError, match="sentences takes no option '128'"):
        data.from_file(notes, **wrong)
