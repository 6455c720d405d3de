"""Image encoders in files of torch.export: what they compute, and what is refused."""

import io
import re
import zipfile
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

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
    frozen = pooled().train()
    frozen[1].eval()  # a norm that is kept as it is
    modes = [module.training for module in frozen.modules()]
    export_encoder(frozen, tmp_path / "one.pt2", side=SIDE, rows=1)
    assert [module.training for module in frozen.modules()] == modes
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


class Doing(nn.Module):
    """Whatever is asked for, with a buffer to write to and numbers of 4 x 4 images."""

    def __init__(self, does):
        super().__init__()
        self.does = does
        self.register_buffer("seen", torch.zeros(3, 1, 1))
        self.register_buffer("places", torch.arange(64.0)[:, None] * 1e-4)

    def forward(self, x):
        return self.does(self, x)


def counted(self, x):
    self.seen.add_(1e-4)
    return (x + self.seen).flatten(1)


def averaged(self, x):
    self.seen.lerp_(x.mean((0, 2, 3))[:, None, None], 1e-4)
    return (x - self.seen).flatten(1)


def attending(dropout):
    def forward(self, x):
        tokens = x.flatten(2).mT[:, None]
        found = F.scaled_dot_product_attention(tokens, tokens, tokens, dropout_p=dropout)
        return found[:, 0].flatten(1)

    return forward


MIXING = {
    "a share of the mean": lambda self, x: (x - 1e-4 * x.mean(0)).flatten(1),
    "sums over those before": lambda self, x: x.cumsum(0).flatten(1),
    "differences to the one before": lambda self, x: torch.cat([x[:1], x[1:] - x[:-1]]).flatten(1),
    "the one two before": lambda self, x: (x + 0.1 * x.roll(2, 0)).flatten(1),
    "only those at two places": lambda self, x: torch.cat([x[:2], x[2:3] + x[:1], x[3:]]).flatten(
        1
    ),
    "tokens among images": lambda self, x: (
        x.flatten(2).transpose(1, 2).reshape(len(x), -1)
        + x.flatten(2).transpose(0, 1).reshape(len(x), -1)
    ),
}
CHANGING = {
    "a counter": (counted, "changes its seen with every batch"),
    "running means": (averaged, "changes its seen with every batch"),
    "noise": (lambda self, x: (x + 1e-4 * torch.rand_like(x)).flatten(1), "draws random numbers"),
    "dropout": (lambda self, x: F.dropout(x, 1e-4, True).flatten(1), "draws random numbers"),
    "dropout in attention": (attending(0.1), "draws random numbers"),
}


@pytest.mark.parametrize("rows", [4, 5, 40])
@pytest.mark.parametrize("does", MIXING.values(), ids=MIXING.keys())
def test_what_mixes_the_images_of_a_batch_is_refused(tmp_path, does, rows):
    export_encoder(Doing(does), tmp_path / "odd.pt2", side=4, rows=rows)
    program = ImageProgram(tmp_path / "odd.pt2")
    with pytest.raises(ModelError, match=r"numbers depend on .*export network\.eval\(\)"):
        program(torch.rand((rows, 3, 4, 4)))


@pytest.mark.parametrize("rows", [4, 40])
@pytest.mark.parametrize("place", range(4))
def test_a_trace_of_others_in_one_row_is_refused(tmp_path, place, rows):
    """Less than rounding by place may be: a single bit counts where an image stays."""
    share = torch.zeros((rows, 1))
    share[place] = 3e-6
    mixing = Doing(lambda self, x: x.flatten(1) + share * x.flatten(1).sum(0))
    program = ImageProgram(export_encoder(mixing, tmp_path / "odd.pt2", side=4, rows=rows))
    with pytest.raises(ModelError, match="depend on the other images"):
        program(torch.rand((rows, 3, 4, 4)))


def test_what_depends_on_the_place_in_a_batch_is_refused(tmp_path):
    placed = Doing(lambda self, x: x.flatten(1) + self.places[: len(x)])
    program = ImageProgram(export_encoder(placed, tmp_path / "placed.pt2", side=4, rows=5))
    with pytest.raises(ModelError, match="depend on its place in a batch"):
        program(torch.rand((5, 3, 4, 4)))


@pytest.mark.parametrize(("does", "said"), CHANGING.values(), ids=CHANGING.keys())
def test_what_remembers_or_draws_is_refused_when_it_is_written(tmp_path, does, said):
    with pytest.raises(ModelError, match=said):
        export_encoder(Doing(does), tmp_path / "odd.pt2", side=4, rows=4)
    assert not list(tmp_path.iterdir())


def test_what_is_ordinary_is_taken(tmp_path):
    images = torch.rand((4, 3, 4, 4))
    for number, does in enumerate(
        (
            attending(0.0),
            lambda self, x: F.dropout(x, 0.5, self.training).flatten(1),
            lambda self, x: F.conv2d(x, torch.ones(2, 3, 3, 3)).view(4, -1),  # in its own order
            lambda self, x: x.as_strided((4, 48), (48, 1)) * 1.0,
            lambda self, x: x.to(torch.bfloat16).flatten(1),
        )
    ):
        module = Doing(does).eval()
        path = export_encoder(module, tmp_path / f"{number}.pt2", side=4, rows=4)
        expected = module(images).float()
        torch.testing.assert_close(ImageProgram(path)(images), expected)


@pytest.mark.parametrize(
    ("does", "said"),
    [
        (lambda self, x: x.flatten(1)[: len(x) // 2], "gives 2 rows for 4 images"),
        (lambda self, x: x.reshape(2 * len(x), -1), "gives 8 rows for 4 images"),
        (lambda self, x: x.flatten(1)[:, :0], r"gives \[4, 0\]"),
        (lambda self, x: (x.flatten(1),), "gives a tuple, a list or a dict"),
        (lambda self, x: {"y": x.flatten(1)}, "gives a tuple, a list or a dict"),
    ],
)
def test_one_row_of_numbers_is_given_for_each_image(tmp_path, does, said):
    with pytest.raises((DataError, ModelError), match=said):
        export_encoder(Doing(does), tmp_path / "odd.pt2", side=4, rows=4)
    assert not list(tmp_path.iterdir())


def test_numbers_that_are_not_finite_are_refused(tmp_path):
    endless = Doing(lambda self, x: x.flatten(1) / (x.flatten(1) * 0))
    program = ImageProgram(export_encoder(endless, tmp_path / "odd.pt2", side=4, rows=4))
    with pytest.raises(DataError, match="numbers that are not finite"):
        program(torch.rand((4, 3, 4, 4)))


def test_a_program_exported_while_training_is_refused(tmp_path, images):
    program = torch.export.export(pooled().train(), (images,))
    torch.export.save(program, tmp_path / "training.pt2")
    with pytest.raises(ModelError, match=r"exported while training.*export network\.eval\(\)"):
        ImageProgram(tmp_path / "training.pt2")


def test_a_file_that_is_replaced_while_it_is_used_changes_nothing(tmp_path, images):
    path = export_encoder(pooled(), tmp_path / "tiny.pt2", side=SIDE, rows=ROWS)
    program, before = ImageProgram(path), image_encoder_digest(path)
    export_encoder(network(nn.AdaptiveAvgPool2d(2), nn.Flatten()), path, side=SIDE, rows=ROWS)
    assert program.made_with == before != image_encoder_digest(path)
    with torch.no_grad():
        torch.testing.assert_close(program(images), pooled().eval()(images))


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
    # of the name, wherever it was when the run was begun
    assert ImageProgram(tmp_path / "gone" / "tiny.pt2").path == written
    monkeypatch.setenv("HOME", str(written.parent))
    monkeypatch.delenv(IMAGE_ENVIRONMENT)
    assert ImageProgram("~/tiny.pt2").path == written
    assert "is a folder" in str(image_encoder_missing(tmp_path))
    for wrong in (5, True, [1]):
        with pytest.raises(OptionError, match=rf"encoder = {re.escape(repr(wrong))}: must name"):
            ImageProgram(wrong)
    with pytest.raises(OptionError, match="encoder = 'aaa"):
        ImageProgram("a" * 400)


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
