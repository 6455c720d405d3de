"""Methods beside each other: the same data, several ε, several seeds.

`plans` says what is to be trained, `running` has it trained, `spending` says what all of it costs
together, `results` and `page` what came of it.
"""

from reticent.comparison.page import render
from reticent.comparison.plans import Comparison, compare_plan
from reticent.comparison.results import gather, to_csv
from reticent.comparison.running import Compared, run_comparison
from reticent.comparison.spending import Total

__all__ = [
    "Compared",
    "Comparison",
    "Total",
    "compare_plan",
    "gather",
    "render",
    "run_comparison",
    "to_csv",
]
