"""What a user should be told before a training that can be done, and is hardly meant."""

from __future__ import annotations

from reticent.privacy import delta_note
from reticent.training import Training

# A nominal number this many times the real one, or less than it by as much, is a slip.
FAR_OFF = 2.0
MOST_MEANT = 20.0


def cautions(training: Training) -> list[str]:
    """One line for each thing; for the eyes of whoever holds the records, kept nowhere.

    That a nominal number of records is far off says something about the real one.
    """
    run, budget = training.run, training.budget
    found = [] if budget is None else [delta_note(budget.delta, run.n), _large(budget.epsilon)]
    return [*(note for note in found if note is not None), *_far_off(run.n, run.records.n)]


def _large(epsilon: float) -> str | None:
    if epsilon <= MOST_MEANT:
        return None
    return (
        f"--epsilon = {epsilon:g} promises next to nothing: odds may change by a factor of "
        f"e^{epsilon:g}"
    )


def _far_off(nominal: int, real: int) -> list[str]:
    """Rates follow from the nominal number, and so does what a release draws.

    Example:
        >>> _far_off(1000, 900)
        []
    """
    if nominal > FAR_OFF * real:
        return [
            f"--n = {nominal:,} is more than {_times(nominal / real)} times the number of records: "
            "releases draw that many times fewer than --batch and are mostly noise. ε holds; give "
            "a nominal number close to the real one"
        ]
    if real > FAR_OFF * nominal:
        return [
            f"--n = {nominal:,}: there are more than {_times(real / nominal)} times as many "
            "records; releases draw that many times more than --batch and move the model so much "
            "further. ε holds; give a nominal number close to the real one"
        ]
    return []


def _times(ratio: float) -> str:
    """Roughly: a power of ten, or 2."""
    power = 1
    while ratio >= 10 * power:
        power *= 10
    return f"{power:,}" if power > 1 else "2"
