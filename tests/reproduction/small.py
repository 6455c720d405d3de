"""A table that is trained in seconds, and pieces of it to be broken."""

from __future__ import annotations

SMALL = """
paper = "Nobody 2026"
name = "Table 1"
title = "Digits"
runs = 5
axis = "epsilon"
columns = [1, 3]
measures = ["accuracy"]
notes = ["Made up."]

[settings]
delta = 1e-5
clip = 0.5

[data.digits]
title = "Digits"
model = "mlp"
batch = 256
lr = 2.0
steps = 6

[[rows]]
name = "DPSGD"

[rows.on.digits]
each = { noise = [6.0, 3.0] }
published = [91.0, 96.0]
spread = [0.5, nan]

[[rows]]
name = "DPIS"
sound = false
why = "sums cost more"
settings = { method = "dpis", method_options = { k = 3.0, divider = 0.9 } }

[rows.on.digits]
settings = { method_options = { divider = 0.5 } }
each = { lr = [0.5, 1], "method_options.quantile" = [0.9, 1.1] }
published = [nan, 92.0]

[[rows]]
name = "SGD"
single = true
settings = { method = "sgd", batch = 64, lr = 0.1 }

[rows.on.digits]
published = 99.0
"""

ATTACKS = """
paper = "Nobody 2026"
name = "Table 2"
title = "Attacks"
measures = ["accuracy", "shadow.accuracy", "best.auc"]
attacks = ["population"]
shadows = 2
audited = 100

[data.digits]
model = "mlp"

[[rows]]
name = "SGD"
settings = { method = "sgd", batch = 64, lr = 0.1, steps = 20 }

[rows.on.digits]
published = { accuracy = 90.0, "shadow.accuracy" = 0.6 }
"""
