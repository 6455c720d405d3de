"""Norms that rest stay as they are; every other module is trained, and comes back as it was."""

import pytest
import torch
from torch import nn

import reticent as rt
from reticent.errors import ModelError
from reticent.gradients.modes import evaluated, modes_of, rests, training_mode

from .problem import INPUTS, TARGETS, options


def pretrained():
    """A network whose batch norm has statistics of its own, frozen."""
    torch.manual_seed(3)
    net = nn.Sequential(
        nn.Linear(5, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Dropout(0.1), nn.Linear(4, 2)
    )
    net(torch.randn(50, 5) + 2)  # public records
    net[1].eval().requires_grad_(False)
    return net


def test_a_frozen_norm_is_trained_around():
    net = pretrained()
    before = {name: value.clone() for name, value in net[1].state_dict().items()}
    held_out = INPUTS[:20], TARGETS[:20]
    plan = options(evaluation=lambda model: rt.evaluate(model, held_out), every=1)
    result = rt.train(net, (INPUTS, TARGETS), **plan)
    assert result.epsilon <= options()["budget"].epsilon
    assert all(torch.equal(before[name], value) for name, value in net[1].state_dict().items())
    assert not net[1].training
    assert net[3].training


def test_a_whole_pretrained_model_in_evaluation_mode_may_have_frozen_norms():
    net = pretrained().eval()
    training = rt.run(net, (INPUTS, TARGETS), **options())
    assert [module.training for module in net] == [True, False, True, True, True]
    training.finish()


def test_its_examples_have_the_gradients_that_they_have_alone():
    net = training_mode(pretrained().eval())
    net[3].p = 0.0
    check = rt.gradients.check(net, nn.CrossEntropyLoss(), INPUTS[:7], TARGETS[:7])
    assert check.ok


@pytest.mark.parametrize(
    "change",
    [
        lambda norm: norm.train(),
        lambda norm: norm.requires_grad_(True),
        lambda norm: setattr(norm, "running_mean", None),
    ],
)
def test_norms_that_do_not_rest_are_refused(change):
    net = pretrained()
    change(net[1])
    assert not rests(net[1])
    with pytest.raises(ModelError, match=r"(?s)BatchNorm1d.*\.eval\(\)\.requires_grad_\(False\)"):
        rt.train(net, (INPUTS, TARGETS), **options())


def test_several_models_with_frozen_norms_are_trained_at_once():
    coins = [rt.Coins.from_seed(seed) for seed in (1, 2)]
    models = [pretrained(), pretrained()]
    for net in models:
        net[3] = nn.Identity()  # dropout is not drawn for several at once
    done = rt.train_many(models, (INPUTS, TARGETS), **options(coins=coins), how="together")
    for result in done:
        assert not result.model[1].training
        assert result.epsilon <= options()["budget"].epsilon


def test_a_replay_keeps_them_too():
    own = options(steps=2)
    del own["coins"], own["device"]
    report = rt.audit.replay(pretrained(), (INPUTS, TARGETS), **own)
    assert report.passed


def test_a_refusal_puts_every_mode_back():
    net = pretrained()
    net[3].eval()
    before = modes_of(net)
    with pytest.raises(ModelError):
        rt.train(net, (INPUTS[:, :3], TARGETS), **options())
    assert modes_of(net) == before


def test_what_modules_do_on_a_change_of_mode_is_undone():
    class Merging(nn.Module):
        """Merges something while it is evaluated, as some adapters do."""

        merged = False

        def train(self, mode=True):
            self.merged = not mode
            return super().train(mode)

    net = nn.Sequential(Merging(), nn.Dropout())
    net[1].eval()
    with evaluated(net):
        assert net[0].merged
        assert not net[0].training
    assert not net[0].merged
    assert [module.training for module in net] == [True, False]
