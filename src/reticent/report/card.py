"""The model card: what a model is, from what, how good, and what was guaranteed."""

from __future__ import annotations

import json
import re
from typing import Any

from reticent import models
from reticent.data.catalog import Entry, lookup
from reticent.errors import ReticentError
from reticent.report.again import COMMAND, CONFIG_FILE, to_toml
from reticent.report.folder import RunFolder
from reticent.report.markup import clean
from reticent.report.words import epsilon_text, guarantee, not_covered, not_the_model
from reticent.training.diverged import in_words
from reticent.training.result import MODEL_FILE

NEW_RECORDS = {"table": "new.csv", "array": "new.npz", "images": "new-images"}
UNSTATED = "not stated; whoever publishes the model should say it here"
_TASKS = {
    "image classification": "image-classification",
    "text classification": "text-classification",
}


def data_set(folder: RunFolder) -> Entry | None:
    """What the catalog knows of the run's data set."""
    try:
        return lookup(str(folder.settings["data"]))
    except (KeyError, ReticentError):
        return None


def described(folder: RunFolder) -> list[tuple[str, str | None]]:
    """The model and its data: names and values."""
    run, settings, weights = folder.run or {}, folder.settings, folder.weights
    known = data_set(folder)
    file = None if folder.model_trouble is None else f"{MODEL_FILE} {folder.model_trouble}"
    if weights is not None:
        file = f"{MODEL_FILE}, {weights.bytes:,} bytes"
    method = run.get("method") or {}
    return [
        ("model", _name(settings.get("model"))),
        ("parameters", None if weights is None else f"{weights.parameters:,}"),
        ("file", file),
        ("SHA-256", folder.sha256),
        ("method", _name(method.get("name") or settings.get("method"))),
        ("task", None if known is None else known.task),
        ("trained on", _name(folder.data)),
        ("data", None if known is None else known.description),
        ("licence of the data", None if known is None else known.licence),
        ("source of the data", None if known is None else known.citation),
        ("features", None if settings.get("features") in (None, "none") else settings["features"]),
        ("licence of the model", UNSTATED),
        ("intended use", UNSTATED),
    ]


def _name(value: Any) -> str | None:
    return None if value is None else clean(value)


def model_card(folder: RunFolder) -> str:
    """MODEL_CARD.md: front matter as Hugging Face reads it, then prose. Public numbers only."""
    run = folder.run
    assert run is not None
    found, known = guarantee(run), data_set(folder)
    name = clean(folder.name)
    accuracy = next(
        (
            m["accuracy"]
            for m in reversed(run.get("metrics") or ())
            if m.get("accuracy") is not None
        ),
        None,
    )
    lines = ["---", *_front(folder, known, accuracy), "---", "", f"# {_md(name)}", ""]
    if folder.model_trouble is not None:
        lines += [f"**{_md(not_the_model(folder.model_trouble))}**", ""]
    lines += ["## Privacy", "", f"**{_md(found.title)}.** {_md(found.sentence)}", ""]
    for text in found.plain:
        lines += [_md(text), ""]
    if found.kind == "differential-privacy":
        lines += ["What ε does not cover:", ""]
        lines += [f"- **{_md(x.name)}** {_md(x.text)}" for x in not_covered(run, folder.settings)]
        lines += [""]
    notes = run["ledger"].get("notes", ())
    if notes:
        lines += ["Noted in the ledger:", "", *(f"- {_md(note)}" for note in notes), ""]
    lines += ["## Model and data", "", "| | |", "|---|---|"]
    lines += [f"| {_md(k)} | {_md(v)} |" for k, v in described(folder) if v]
    if folder.columns:
        lines += ["", "| column | kind | how it became numbers | cost |", "|---|---|---|---|"]
        lines += ["| " + " | ".join(map(_md, line)) + " |" for line in folder.columns]
    lines += ["", "## Evaluation", ""]
    if run.get("diverged"):
        lines += [f"**Do not use this model:** {_md(in_words(run['diverged']))}.", ""]
    if accuracy is None:
        lines += ["Not evaluated, or not as a classifier.", ""]
    else:
        lines += [
            f"Held-out accuracy {100 * float(accuracy):.2f} %, after {int(run['steps']):,} "
            "releases. Held-out records are not covered by ε.",
            "",
        ]
    lines += ["## Use", "", *_use(folder)]
    toml = to_toml(folder.settings)
    if toml:
        lines += ["## Training it again", "", f"With this as `{CONFIG_FILE}`:", ""]
        lines += [*_fenced(toml, "toml"), "", *_fenced(COMMAND, ""), ""]
        lines += ["A second run on the same records spends its ε a second time.", ""]
    lines += ["## Versions", ""]
    lines += [f"- {_md(k)} {_md(v)}" for k, v in (run.get("versions") or {}).items()]
    return clean("\n".join(lines).rstrip() + "\n")


def _front(folder: RunFolder, known: Entry | None, accuracy: Any) -> list[str]:
    """YAML; every text is in JSON's quotes, which YAML reads too."""
    run = folder.run
    assert run is not None
    data = folder.data
    tags = ["privacy", str(run["method"].get("name"))]
    if guarantee(run).kind == "differential-privacy":
        tags.insert(1, "differential-privacy")
    lines = [f"tags: {_yaml(tags)}"]
    if data is not None:
        lines.append(f"datasets: {_yaml([data])}")
    task = _TASKS.get(known.task) if known is not None else None
    if task is not None:
        lines.append(f"pipeline_tag: {_yaml(task)}")
    if accuracy is not None:
        lines += [
            "metrics: [accuracy]",
            "model-index:",
            f"- name: {_yaml(folder.name)}",
            "  results:",
            f"  - task: {{type: {_yaml(task or 'other')}}}",
            f"    dataset: {{name: {_yaml(str(data))}, type: {_yaml(str(data))}}}",
            f"    metrics: [{{type: accuracy, value: {float(accuracy):.6f}}}]",
        ]
    epsilon = run["statement"].get("epsilon")
    lines.append(f"guarantee: {_yaml(guarantee(run).kind)}")
    if epsilon is not None and guarantee(run).kind == "differential-privacy":
        lines += [
            f"epsilon: {epsilon_text(float(epsilon))}",
            f"delta: {float(run['statement']['delta']):e}",  # 1e-5 would be text to YAML
            f"adjacency: {_yaml(str(run['statement']['adjacency']))}",
        ]
    return lines


def _yaml(value: Any) -> str:
    # YAML has no lone surrogates either, and reads U+0085 and U+2028 as ends of lines
    return json.dumps(_cleaned(value), ensure_ascii=True)


def _cleaned(value: Any) -> Any:
    return [clean(one) for one in value] if isinstance(value, list) else clean(value)


def _md(text: object) -> str:
    r"""Text in which nothing is Markdown or HTML.

    >>> _md("a|b <script> *c*")
    'a\\|b &lt;script> \\*c\\*'
    """
    flat = " ".join(clean(text).split())
    return re.sub(r"([\\`*_\[\]|#~])", r"\\\1", flat.replace("&", "&amp;").replace("<", "&lt;"))


def _fenced(text: str, language: str) -> list[str]:
    """A block whose fence is longer than any in it."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return [f"{fence}{language}", text, fence]


def _printed(folder: RunFolder) -> str | None:
    """The module as PyTorch prints it, where that follows from the settings and the records."""
    from reticent.data.own.recorded import Recorded  # here: most cards are of other data

    settings, known = folder.settings, data_set(folder)
    if settings.get("features", "none") != "none":
        return None
    try:
        if folder.predicts:
            recorded = Recorded.from_json((folder.run or {})["config"]["records"])
            shape, classes = recorded.shape, len(recorded.classes)
        elif known is not None:
            shape, classes = known.shape, known.n_classes
        else:
            return None
        options = settings.get("model_options") or {}
        activation = settings.get("activation")
        return str(
            models.build(
                settings["model"],
                classes=classes,
                input_shape=shape,
                activation=activation,
                **options,
            )
        )
    except (KeyError, TypeError, ValueError, ReticentError):  # the card is written all the same
        return None


def _use(folder: RunFolder) -> list[str]:
    """How to predict for new records; of a model of one's own data, with their preprocessing."""
    printed = _printed(folder)
    weights = [
        *([] if printed is None else [*_fenced(printed, "text"), ""]),
        "```python",
        "from safetensors.torch import load_file",
        "",
        'model.load_state_dict(load_file("model.safetensors"))',
        "```",
        "",
    ]
    if not folder.predicts:
        return ["Into a model of the same architecture:", "", *weights]
    files = "`run.json` and `model.safetensors`"
    if folder.settings.get("standardise"):
        files = "`run.json`, `model.safetensors` and `standardisation.safetensors`"
    if folder.settings.get("features") == "image-encoder":
        files += ", with the encoder's file beside them or in `$RETICENT_IMAGE_ENCODERS`"
    new = NEW_RECORDS[folder.source]
    return [
        "New records become numbers as `run.json` says, with the bounds, lists and classes of the "
        f"training. In the folder that holds {files}:",
        "",
        *_fenced(f"reticent predict . --data {new} --out predictions.csv", "bash"),
        "",
        "Or in Python, with the plain PyTorch module and its inputs at hand:",
        "",
        "```python",
        "from reticent.prediction import Predictor",
        "",
        'predictor = Predictor.load(".", device="cpu")',
        f'predictor.predict("{new}").labels',
        f'predictor.model(predictor.read("{new}").inputs)',
        "```",
        "",
        "A prediction is computed from the model and the new record alone: "
        + (
            "it costs the training records nothing."
            if folder.run is not None and guarantee(folder.run).kind == "differential-privacy"
            else "no ε bounds what it says of the training records, as none bounds the model."
        ),
        "",
        "The weights alone, into a module of the same architecture:",
        "",
        *weights,
    ]
