"""Run folders as a report finds them, and a reader of pages."""

import copy
import json
from html.parser import HTMLParser

import torch

import reticent as rt
from reticent.report.folder import run_identity
from reticent.training.evaluation import class_counts

CLASSES = ("cat", "dog", "newt")
SETTINGS = {"data": "digits", "model": "linear", "method": "dpsgd", "epsilon": 3.0, "lr": 0.5}


def records(n, seed):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 3, (n,), generator=generator)
    inputs = torch.randn(n, 4, generator=generator)
    inputs[:, :3] += 2 * torch.nn.functional.one_hot(labels, 3)
    return inputs, labels


def made(folder, *, method=None, budget=True, **options):
    """A finished run of a small model."""
    torch.manual_seed(0)
    held = records(90, 1)
    rt.train(
        torch.nn.Linear(4, 3),
        records(300, 0),
        method=method or rt.DPSGD(batch=60, clip=1.0, noise=3.0),
        budget=rt.Budget(epsilon=2, delta=1e-4) if budget else None,
        steps=20,
        every=4,
        optimizer=lambda params: torch.optim.SGD(params, lr=0.5),
        evaluation=lambda model: rt.evaluate(model, held),
        held_out=lambda model: class_counts(model, held, CLASSES),
        folder=folder,
        device="cpu",
        coins=rt.coins.Coins.from_seed(3),
        config={"settings": SETTINGS, "public_seeds": {"model": 0}},
        **options,
    )
    run = read(folder)
    run["ledger"]["notes"] = [n for n in run["ledger"]["notes"] if "stated seed" not in n]
    write(folder, run)
    return folder


def read(folder):
    return json.loads((folder / "run.json").read_text())


def write(folder, run):
    (folder / "run.json").write_text(json.dumps(run))


def changed(folder, **values):
    """Write the run again with these values; None takes one away."""
    run = read(folder)
    for name, value in values.items():
        run[name] = value
        if value is None:
            del run[name]
    write(folder, run)
    return run


_ESTIMATE = {"value": 0.61234, "low": 0.55, "high": 0.66}
AUDIT = {
    "format": "reticent-audit/1",
    "passed": True,
    "wrong": [],
    "conduct": {"checks": [{"name": "SECRET check", "passed": True, "detail": "SECRET detail"}]},
    "replay": {"releases": 5, "leaks": []},
    "canaries": {
        "upper": {"epsilon": 1.98765},
        "bounds": [
            {"family": "closed", "epsilon": 0.87654, "confidence": 0.95, "assumes": "nothing"},
            {"family": "none", "epsilon": None, "confidence": 0.95, "assumes": "SECRET"},
        ],
    },
    "membership": {
        "about": "SECRET models",
        "notes": [],
        "attacks": {
            "SECRET attack": [
                {
                    "n_members": 50,
                    "n_nonmembers": 50,
                    "auc": _ESTIMATE,
                    "chance": False,
                    "roc": [[0.0, 0.0], [0.0, 0.02], [0.008, 0.34567], [1.0, 1.0]],
                }
            ]
        },
    },
}
DIAGNOSTICS = {
    "warning": "SECRET",
    "peak_memory_bytes": 123 * 2**20,
    "releases": [{"release": k, "trials": 1 + k % 3} for k in range(9)],
    "gradient_norms": {
        "edges": [0.1, 1.0, 10.0],
        "counts": [7654, 321],
        "records": 7975,
        "above": 321,
        "bound": [1.0, 1.0],
    },
}


def audited(folder, **values):
    """Leave an audit of this very run, with numbers that no public page may show."""
    report = {**copy.deepcopy(AUDIT), "run": run_identity(folder), **values}
    (folder / "audit.json").write_text(json.dumps(report))


def diagnosed(folder):
    (folder / "diagnostics.private.json").write_text(json.dumps(DIAGNOSTICS))


VOID = {"meta", "br", "hr", "img", "link", "col", "input"}


class Page(HTMLParser):
    """What is on a page: elements with their attributes, texts, and whether all of it closes."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.elements, self.open, self.faults, self.texts = [], [], [], []
        self.inside = []  # (path of open elements, text)
        self.feed(text)
        self.close()
        self.faults += [f"<{tag}> is not closed" for tag in self.open]

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs), tuple(self.open)))
        if len(dict(attrs)) != len(attrs):
            self.faults.append(f"<{tag}> has an attribute twice")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs), tuple(self.open)))

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.faults.append(f"</{tag}> closes something else")

    def handle_data(self, data):
        if "style" not in self.open:
            self.texts.append(data)
            self.inside.append((tuple(self.open), data))

    def all(self, tag):
        return [attrs for name, attrs, _ in self.elements if name == tag]

    @property
    def text(self):
        return " ".join(" ".join(self.texts).split())
