"""Image encoders in files of torch.export: what they compute, and what is refused."""

import io
import zipfile
from pathlib import Path

import pytest
import torch
from torch import nn

from reticent.encoders import (
    IMAGE_ENVIRONMENT,
    ImageProgram,
    export_encoder,
    image_encoder_digest,
    image_encoder_missing,
)
from reticent.errors import DataError, ModelError, OptionError

ROWS, SIDE = 3, 8
NORM = nn.BatchNorm2d(4)
NORM.running_mean.copy_(torch.tensor([0.1, -0.2, 0.3, 0.0]))


def network(*layers: nn.Module) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(3)
        stem = nn.Conv2d(3, 4, 3, padding=1)
    return nn.Sequential(stem, *layers)


def pooled() -> nn.Module:
    return network(NORM, nn.ReLU(), nn.Dropout(), nn.AdaptiveAvgPool2d(1), nn.Flatten())


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("encoder") / "tiny.pt2"
    return export_encoder(pooled(), path, side=SIDE, rows=ROWS)


@pytest.fixture
def images() -> torch.Tensor:
    return torch.rand((ROWS, 3, SIDE, SIDE), generator=torch.Generator().manual_seed(1))


def test_a_program_computes_what_the_network_does_when_it_is_not_trained(written, images):
    program = ImageProgram(written)
    assert (program.shape, program.rows, program.width) == ((3, SIDE, SIDE), ROWS, 4)
    with torch.no_grad():
        expected = pooled().eval()(images)
    torch.testing.assert_close(program(images), expected)
    assert torch.equal(program(images), program(images))


def test_maps_become_their_mean(tmp_path, images):
    path = export_encoder(network(nn.ReLU()), tmp_path / "maps.pt2", side=SIDE, rows=ROWS)
    with torch.no_grad():
        expected = network(nn.ReLU())(images).mean((2, 3))
    torch.testing.assert_close(ImageProgram(path)(images), expected)


def test_a_program_with_any_number_of_rows_is_taken(tmp_path, images):
    rows = torch.export.Dim("rows", min=2, max=4096)
    program = torch.export.export(pooled().eval(), (images,), dynamic_shapes=({0: rows},))
    torch.export.save(program, tmp_path / "any.pt2")
    found = ImageProgram(tmp_path / "any.pt2")
    many = torch.rand((found.rows, 3, SIDE, SIDE))
    with torch.no_grad():
        torch.testing.assert_close(found(many), pooled().eval()(many))


def test_exporting_leaves_the_network_as_it_was(tmp_path):
    net = pooled().train()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    export_encoder(net, tmp_path / "one.pt2", side=SIDE, rows=1)
    assert net.training
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


class Centred(nn.Module):
    """What is left of each image after the mean of the batch."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x - x.mean(0)).flatten(1)


class Rough(nn.Module):
    """Noise on every call."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.flatten(1) + torch.rand_like(x).flatten(1)


class Endless(nn.Module):
    """Division by nothing."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.flatten(1) / (x.flatten(1) * 0)


@pytest.mark.parametrize(
    ("layer", "error", "said"),
    [
        (Centred(), ModelError, "another image's numbers come out otherwise"),
        (Rough(), ModelError, "the same images, a second time, numbers come out otherwise"),
        (Endless(), DataError, "numbers that are not finite"),
    ],
)
def test_what_is_no_map_of_each_image_is_refused(tmp_path, layer, error, said):
    export_encoder(layer, tmp_path / "odd.pt2", side=4, rows=ROWS)
    with pytest.raises(error, match=said):
        ImageProgram(tmp_path / "odd.pt2")


def test_a_program_exported_while_training_is_refused(tmp_path, images):
    program = torch.export.export(pooled().train(), (images,))
    torch.export.save(program, tmp_path / "training.pt2")
    with pytest.raises(ModelError, match=r"exported while training.*export network\.eval\(\)"):
        ImageProgram(tmp_path / "training.pt2")


class Two(nn.Module):
    """Two tensors instead of one."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.flatten(1), x.flatten(1) + 1


class Numbers(nn.Module):
    """Whole numbers."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.flatten(1).argmax(1, keepdim=True)


class Long(nn.Module):
    """A row of vectors for each image."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.flatten(2)


@pytest.mark.parametrize(
    ("layer", "shape", "said"),
    [
        (Two(), (2, 3, 4, 4), "gives 2 values; it must be one tensor"),
        (Numbers(), (2, 3, 4, 4), "gives torch.int64"),
        (Long(), (2, 3, 4, 4), r"gives \[2, 3, 16\]; it must give \[n, d\], or maps"),
        (nn.Linear(5, 2), (2, 5), r"takes \[2, 5\]; it must take images"),
    ],
)
def test_what_is_no_encoder_of_images_is_refused(tmp_path, layer, shape, said):
    program = torch.export.export(layer.eval(), (torch.zeros(shape),))
    torch.export.save(program, tmp_path / "other.pt2")
    with pytest.raises(DataError, match=said):
        ImageProgram(tmp_path / "other.pt2")


@pytest.mark.parametrize("content", [b"", b"no archive", "cut", "emptied"])
def test_what_is_no_program_is_named(written, tmp_path, content, caplog, capfd):
    path = tmp_path / "bad.pt2"
    if content == "cut":
        content = written.read_bytes()[:2000]
    elif content == "emptied":
        memory = io.BytesIO()
        zipfile.ZipFile(memory, "w").close()
        content = memory.getvalue()
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"bad\.pt2: is no program of torch\.export"):
        ImageProgram(path)
    assert not caplog.records
    assert capfd.readouterr() == ("", "")


def test_encoders_are_found_here_or_in_their_folder(written, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert image_encoder_missing(written) is None
    assert "name a file" in str(image_encoder_missing(""))
    assert image_encoder_digest("") == image_encoder_digest("tiny.pt2") == ""
    monkeypatch.delenv(IMAGE_ENVIRONMENT, raising=False)
    with pytest.raises(OptionError, match=r"encoder = 'tiny\.pt2': .*names no folder.*export_enc"):
        ImageProgram("tiny.pt2")
    monkeypatch.setenv(IMAGE_ENVIRONMENT, str(written.parent))
    assert image_encoder_missing("tiny.pt2") is None
    assert ImageProgram("tiny.pt2").path == written
    assert image_encoder_digest("tiny.pt2") == image_encoder_digest(written) != ""
    assert "nor in" in str(image_encoder_missing("other.pt2"))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"path": "tiny.pt"}, r"path = 'tiny\.pt': must end with \.pt2"),
        ({"rows": 0}, "rows = 0: must be at least 1"),
        ({"side": 1.5}, r"side = 1\.5: must be a whole number"),
        ({"channels": 1}, r"cannot be exported for images \[3, 1, 8, 8\]"),
    ],
)
def test_an_export_that_cannot_work_leaves_no_file(tmp_path, monkeypatch, options, said):
    monkeypatch.chdir(tmp_path)
    given = {"path": "tiny.pt2", "side": SIDE, "rows": ROWS, **options}
    with pytest.raises((OptionError, ModelError), match=said):
        export_encoder(pooled(), **given)
    assert not list(tmp_path.iterdir())
