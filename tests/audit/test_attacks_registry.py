import pytest
import torch

from reticent.audit import attacks
from reticent.audit.attacks import Scores
from reticent.errors import DataError, OptionError


def test_the_registry():
    for name in attacks.NAMES:
        card = attacks.describe(name)
        assert attacks.build(name, **card.options) == attacks.build(name)
        assert card.to_json()["name"] == name
        assert card.title
        assert card.paper
        assert card.summary
    with pytest.raises(OptionError, match="must be one of population"):
        attacks.build("guess")
    with pytest.raises(OptionError, match="no option of rmia, which takes online, gamma, a"):
        attacks.build("rmia", beta=1)
    for name, wrong in [
        ("rmia", {"gamma": 0.5}),
        ("rmia", {"a": 2.0}),
        ("likelihood-ratio", {"variance": "some"}),
        ("reference", {"fit": "beta"}),
        ("population", {"least": -1}),
        ("white-box", {"known": 1.0}),
        ("shadow", {"classifier": "tree"}),
    ]:
        with pytest.raises(OptionError, match=next(iter(wrong))):
            attacks.build(name, **wrong)
    with pytest.raises(DataError, match="values has shape"):
        Scores(torch.zeros(3), torch.tensor([True, False, True]))
