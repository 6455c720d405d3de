"""One page that says what a run guarantees, what it cost, and how good its model is."""

from reticent.report.card import model_card
from reticent.report.folder import RunFolder, read_folder
from reticent.report.page import render
from reticent.report.writing import write_card, write_report

__all__ = ["RunFolder", "model_card", "read_folder", "render", "write_card", "write_report"]
