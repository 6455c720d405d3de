"""A file of somebody's own, jobs on it, and results that nobody trained."""

from __future__ import annotations

import random

from reticent.comparison.plans import compare_plan
from reticent.reproduction.jobs import Outcome

OPTIONS = {"target": "ill", "classes": "no,yes", "bounds": ["age=0..120"]}
SHARED = {"data_options": OPTIONS, "steps": 5}


def people(folder, n=200, seed=0):
    """A small table of made-up people."""
    drawn = random.Random(seed)
    path = folder / "people.csv"
    rows = []
    for _ in range(n):
        age = drawn.randint(18, 90)
        rows.append(f"{age},{'yes' if age + drawn.gauss(0, 10) > 50 else 'no'}")
    path.write_text("age,ill\n" + "\n".join(rows) + "\n")
    return path


def own_plan(folder, names=("dpsgd",), epsilons=(1.0,), seeds=1, **options):
    return compare_plan(
        str(people(folder)), names, epsilons, seeds=seeds, shared={**SHARED, **options}
    )


def made_up(plan, value=90.0, **changes):
    """Outcomes of all jobs of a plan; accuracy rises with ε and the seed."""
    outcomes = {}
    for cell in plan.cells:
        for seed in range(plan.seeds):
            key = plan.job(cell, seed).key
            accuracy = value + seed + (cell.epsilon or 5.0)
            outcomes[key] = Outcome(
                key,
                values={"accuracy": accuracy},
                sound_epsilon=cell.epsilon if cell.promised else None,
                steps=10,
                seconds=2.0 + seed,
                gradients=1000.0,
                **changes,
            )
    return outcomes
