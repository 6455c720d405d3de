"""What DPSUR's published settings cost: claim, explicit instance, and our three accountants.

python benchmarks/selection.py        # some minutes
"""

from __future__ import annotations

import json
from pathlib import Path

from machine import describe_machine
from reticent import data as datasets
from reticent.methods import DPSUR
from reticent.privacy import Budget, Ledger, SelectiveGaussian
from reticent.privacy.selective_instance import instance_epsilon
from reticent.privacy.selective_paper import paper_epsilon, paper_steps
from reticent.reproduction.published import DPSUR_TABLE, dpsur_entries
from reticent.reproduction.tables import load

RESULT = Path(__file__).parent / "results" / "selection.json"
DELTA = 1e-5


def main() -> None:
    rows = []
    for data in load(DPSUR_TABLE).data:
        n = datasets.lookup(data).n_train
        for epsilon, entry in dpsur_entries(data).items():
            settings = vars(entry.settings)
            names = ("batch", "noise", "valid_batch", "valid_noise")
            method = DPSUR(**{name: settings[name] for name in names})
            charge = method.price(n)[0][0]
            assert isinstance(charge, SelectiveGaussian)
            updates = paper_steps(charge, epsilon, DELTA)
            ledger = Ledger()
            ledger.charge(charge, "accepted updates", count=updates)
            row = {
                "data": data,
                "n": n,
                **{name: settings[name] for name in names},
                "updates": updates,
                "claimed": paper_epsilon(charge, updates, DELTA),
                "instance": instance_epsilon(charge, updates, DELTA),
                "exact": ledger.epsilon(DELTA, "selective-exact"),
                "pld": ledger.epsilon(DELTA, "selective-pld"),
                "rdp": ledger.epsilon(DELTA, "selective-rdp"),
                "affordable": Ledger(Budget(epsilon, DELTA)).capacity(charge),
            }
            print(row, flush=True)
            rows.append(row)
    record = {"what": "selection", "delta": DELTA, "machine": describe_machine(), "rows": rows}
    RESULT.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
