"""The examples of a page of Markdown: found, run in order, or checked where they cannot be run.

A page speaks to the tests by comments, which a reader does not see:

    <!-- not run: REASON -->      the next block is checked as far as that goes, and not run
    <!-- file: NAME, for WHAT --> the next block is this file, for `train` or for `reproduce`
    <!-- setup: CODE -->          Python that comes before, such as making a file
    <!-- check: EXPRESSION -->    what holds after the blocks above

The noise is secret, so accuracies vary. The bounds that pages check lie more than ten standard
deviations below what these examples reached in 11 to 20 runs; were they normal, a bound would be
missed with probability below 1e-20.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import inspect
import io
import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import typer

from reticent import data, features
from reticent.audit import attacks
from reticent.cli import app, reproduce, train
from reticent.cli.building import build_method
from reticent.cli.settings import Settings, assignments, read_config
from reticent.data.own import is_own
from reticent.reproduction import checking, tables

ROOT = Path(__file__).parent.parent
PROGRAMS = ("reticent", "make", "pip", "python")
SHELLS = ("", "bash", "sh", "console")
WORDS = ("not run", "file", "setup", "check")
GENERATED = ("frontier", "/frontier", "speed", "/speed")
COMMAND = typer.main.get_command(app)  # once: it takes as long as many a command
# a minute of whitening, of clustering; an encoder that is not here
SLOW_TO_BUILD = ("random-images", "word-clusters", "sentence-encoder")


@dataclass(frozen=True)
class Block:
    """One piece of a page: a fenced block with what was said of it, or a comment that acts."""

    line: int
    language: str
    text: str
    said: dict[str, str] = field(default_factory=dict)

    @property
    def commands(self) -> list[list[str]]:
        """The lines of a shell block as words; a line that ends in a backslash goes on."""
        lines = self.text.replace("\\\n", " ").splitlines()
        if self.language == "console":  # what is not typed was printed
            lines = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
        return [words for line in lines if (words := shlex.split(line, comments=True))]


class SnippetError(AssertionError):
    """An example that is wrong, or of which nobody said what to do with it."""


def blocks(text: str) -> list[Block]:
    """All fenced blocks and acting comments of a page, in order."""
    found, said, line = [], {}, 0
    lines = text.splitlines()
    while line < len(lines):
        start, stripped = line, lines[line].strip()
        if stripped.startswith("<!--"):
            while "-->" not in lines[line]:
                line += 1
            comment = "\n".join(lines[start : line + 1]).strip()
            word, value = _comment(comment.removeprefix("<!--").removesuffix("-->"), start + 1)
            if word in ("setup", "check"):
                found.append(Block(start + 1, word, value))
            elif word:
                said[word] = value
        elif stripped.startswith("```"):
            line += 1
            while line < len(lines) and not lines[line].strip().startswith("```"):
                line += 1
            if line == len(lines):
                raise SnippetError(f"line {start + 1}: a block that does not end")
            body = "\n".join(lines[start + 1 : line]) + "\n"
            found.append(Block(start + 1, stripped[3:].strip(), inspect.cleandoc(body), said))
            said = {}
        elif re.match(r"( {4}|\t)(\$ )?(reticent|pip|make|python|import|from) ", lines[line]):
            raise SnippetError(f"line {start + 1}: an example that is indented; fence it")
        elif stripped and said:
            raise SnippetError(f"line {start + 1}: a comment is about no block: {said}")
        line += 1
    if said:
        raise SnippetError(f"a comment is about no block: {said}")
    return found


def _comment(text: str, line: int) -> tuple[str, str]:
    word, _, value = text.strip("\n ").partition(":")
    if word in GENERATED:
        return "", ""
    if word not in WORDS or not value.strip():
        raise SnippetError(f"line {line}: a comment that means nothing: {text.strip()!r}")
    return word, inspect.cleandoc(value)


def run_page(text: str, name: str) -> dict[str, Any]:
    """Run the examples of a page in the present folder; the names they leave."""
    names: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks(text):
        try:
            _run_block(block, names)
        except Exception as error:
            raise SnippetError(f"{name}, line {block.line}: {error!r}\n{block.text}") from error
    return names


def _run_block(block: Block, names: dict[str, Any]) -> None:
    idle = "not run" in block.said
    if "file" in block.said and block.language not in ("toml", "json"):
        raise SnippetError("only TOML and JSON are files")
    if block.language == "python" and idle:
        check_code(block.text, names, block.said["not run"])
    elif block.language in ("python", "setup"):
        code = compile(block.text, f"<line {block.line}>", "exec", dont_inherit=True)
        exec(code, names)
    elif block.language == "check":
        if not eval(block.text, names):
            raise SnippetError("does not hold")
    elif block.language in ("toml", "json"):
        _load(block)
    elif block.language in SHELLS:
        commands = block.commands
        if not commands or commands[0][0] not in PROGRAMS:
            raise SnippetError("no command; a block that is to be read is `text`")
        for words in commands:
            (check_command if idle else run_command)(words)
    elif block.language != "text" or block.text.startswith(PROGRAMS):
        raise SnippetError(f"nobody knows how to run {block.language!r}")


def _load(block: Block) -> None:
    name, _, use = block.said.get("file", "").partition(", for ")
    if name:
        Path(name).write_text(block.text)
    if block.language == "json":
        json.loads(block.text)
    elif use == "train":
        read_config(Path(name))
    elif use == "reproduce":
        tables.load(name)
    else:
        raise SnippetError("TOML needs a comment: file: NAME, for train (or for reproduce)")


def run_command(words: list[str]) -> None:
    """Run a command as it stands; it must succeed."""
    check_words(words)
    if words[0] != "reticent":
        raise SnippetError(f"{' '.join(words)}: only reticent is run here; say `not run: why`")
    invoke(words[1:])


def invoke(words: list[str]) -> None:
    """Call the command line as it is; a status other than 0 is an error."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        status = COMMAND.main(words, prog_name="reticent", standalone_mode=False)
    if status:
        raise SnippetError(f"{' '.join(words)}: ended with status {status}: {printed.getvalue()}")


def check_words(words: list[str]) -> None:
    """Refuse what would need a shell, and two commands in one line."""
    shell = {"|", ">", "<", "&", "&&", ";", "..."} & set(words)
    if shell or (words[0] == "reticent" and set(PROGRAMS) & set(words[1:])):
        raise SnippetError(f"{' '.join(words)}: one plain command in a line")


def check_command(words: list[str]) -> None:
    """All of a command but its work: options, their values, names, settings."""
    check_words(words)
    program, *rest = words
    if program == "make":
        targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        _known([word for word in rest if "=" not in word], targets)
    elif program == "pip":
        extras = "\n".join(rest) if rest[:1] == ["install"] else "[?]"
        listed = (ROOT / "pyproject.toml").read_text().partition("optional-dependencies]")[2]
        known = re.findall(r"^(\w+) = ", listed.partition("\n[")[0], re.MULTILINE)
        _known(re.findall(r"reticent\[(.*?)\]", extras), known)
    elif program == "python":
        if not (ROOT / rest[0]).is_file():
            raise SnippetError(f"there is no {rest[0]}")
    else:
        path, given = parse(rest)
        CHECKS.get(path, lambda given, rest: None)(given, rest)


def _known(words: list[str], known: list[str]) -> None:
    for word in words:
        if word not in known:
            raise SnippetError(f"{word!r} is not one of {', '.join(known)}")


def parse(words: list[str]) -> tuple[str, dict[str, Any]]:
    """The name of a command and its options, as the real command line parses them."""
    command, path, context = COMMAND, [], None
    while True:
        context = command.make_context(path[-1] if path else "reticent", words, parent=context)
        left = [*getattr(context, "_protected_args", ()), *context.args]
        if not hasattr(command, "resolve_command") or not left:
            return " ".join(path), context.params
        name, command, words = command.resolve_command(context, left)
        path.append(name)


def _check_train(given: dict[str, Any], words: list[str]) -> None:
    """The real command up to where it would load records."""
    if given["resume"] is not None:
        return

    class Stop(Exception):
        """All that comes before the records is done."""

    def stop(settings: Settings, **options: Any) -> None:
        raise Stop(settings)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train, "build_training", stop)
        with pytest.raises(Stop) as caught:
            invoke(words)
    settings: Settings = caught.value.args[0]
    build_method(settings)
    if settings.features != "none":
        features.describe(settings.features).complete(settings.feature_options)
    if not is_own(settings.data) and settings.features not in SLOW_TO_BUILD:
        checking.build(settings)


def _check_features(given: dict[str, Any], words: list[str]) -> None:
    data.lookup(given["dataset"])
    features.describe(given["name"]).complete(assignments("option", given["option"]) or {})


def _check_audit(given: dict[str, Any], words: list[str]) -> None:
    if given["attacks"] not in ("all", "none"):
        _known(given["attacks"].split(","), list(attacks.NAMES))


def _check_reproduce(given: dict[str, Any], words: list[str]) -> None:
    table = tables.load(given["table"])
    chosen = ("data", "epsilon", "columns", "rows", "variant")
    assert reproduce._selected(table, *(list(given[name] or ()) or None for name in chosen))


CHECKS = {
    "train": _check_train,
    "features compute": _check_features,
    "data get": lambda given, words: data.lookup(given["name"]),
    "audit": _check_audit,
    "reproduce": _check_reproduce,
}


def check_code(text: str, names: dict[str, Any], reason: str) -> None:
    """Python that is not run: it compiles, what it imports and names exists, calls fit.

    A package that is not here may be what the reason names.
    """
    tree = ast.parse(text)
    known = dict(names)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for one in node.names:
                if f"the {one.name} library" not in reason:
                    known[one.asname or one.name] = importlib.import_module(one.name)
        elif isinstance(node, ast.ImportFrom) and f"the {node.module} library" not in reason:
            module = importlib.import_module(str(node.module))
            for one in node.names:
                known[one.asname or one.name] = getattr(module, one.name)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            _value(node, known)
        elif isinstance(node, ast.Call) and (found := _value(node.func, known)) is not None:
            given = {word.arg: None for word in node.keywords if word.arg}
            inspect.signature(found).bind_partial(*node.args, **given)


def _value(node: ast.expr, known: dict[str, Any]) -> Any:
    """What a dotted name stands for; None where only running would tell."""
    if isinstance(node, ast.Name):
        return known.get(node.id)
    if isinstance(node, ast.Attribute) and inspect.ismodule(owner := _value(node.value, known)):
        return getattr(owner, node.attr)
    return None


def inline(text: str) -> Iterator[str]:
    """Code within sentences."""
    prose = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    for span in re.findall(r"(?<!`)`([^`]+)`(?!`)", prose):
        yield " ".join(span.split())
