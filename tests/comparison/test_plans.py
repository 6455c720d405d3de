"""What a comparison trains, and what it refuses."""

from __future__ import annotations

import pytest

from reticent.cli.settings import resolve
from reticent.comparison.plans import check, compare_plan
from reticent.data.own import reading
from reticent.errors import DataError, OptionError, ReticentError
from reticent.reproduction.jobs import Job

from .small import OPTIONS, own_plan, people


def test_every_method_has_its_own_recipe():
    names = ["dpsgd", "dpis", "dpsur", "sign-adam", "selena", "sgd"]
    plan = compare_plan("digits", names, [3, 0.5], seeds=2)
    assert plan.epsilons == (0.5, 3.0)
    assert [(c.label, c.epsilon) for c in plan.cells[:4]] == [
        ("dpsgd", 0.5),
        ("dpsgd", 3.0),
        ("dpis", 0.5),
        ("dpis", 3.0),
    ]
    for cell in plan.cells:
        flags = {"data": "digits", "method": cell.label, "epsilon": cell.epsilon}
        assert cell.settings == resolve(None, flags)
    assert [cell.epsilon for cell in plan.cells if not cell.promised] == [None, None]
    jobs = plan.jobs()
    assert len({job.key for job in jobs}) == len(jobs) == 2 * (4 * 2 + 2)
    assert [job.settings.seed for job in jobs] == [0] * 10 + [1] * 10  # first seeds first
    assert not plan.own


def test_what_all_share_is_left_out_where_it_means_nothing():
    shared = {"clip": 0.25, "lr": 0.125, "delta": 1e-6}
    plan = compare_plan("digits", ["dpsgd", "sgd"], [1], shared=shared)
    private, plain = (cell.settings for cell in plan.cells)
    assert (private.clip, private.lr, private.delta) == (0.25, 0.125, 1e-6)
    assert plain.lr == 0.125
    assert "clip" not in plain.to_json()


def test_one_method_may_differ():
    overrides = {"dpsgd": {"lr": 0.5, "epochs": 2}, "dpis": {"k": 2.0}}
    plan = compare_plan(
        "digits", ["dpsgd", "dpis"], [1], shared={"lr": 4.0, "steps": 7}, overrides=overrides
    )
    one, other = (cell.settings for cell in plan.cells)
    assert (one.lr, one.epochs, one.steps) == (0.5, 2, None)  # who sets one speaks for both
    assert (other.lr, other.epochs, other.steps) == (4.0, None, 7)
    assert other.method_options["k"] == 2.0


def test_a_published_variant_has_no_guarantee():
    plan = compare_plan("digits", ["dpsur", "dpsur:published", "dpsur:repaired"], [3])
    assert [cell.variant for cell in plan.cells] == ["sound", "published", "repaired"]
    assert [cell.promised for cell in plan.cells] == [True, False, True]
    assert len({plan.job(cell, 0).key for cell in plan.cells}) == 3


def test_attacks_are_jobs_of_their_own():
    plan = compare_plan("digits", ["dpsgd"], [1, 3], seeds=2, attacks=["shadow"], shadows=2)
    jobs = plan.jobs()
    assert [job.attacks for job in jobs] == [()] * 4 + [("shadow",)] * 2
    assert jobs[-1].measures == ("shadow.auc", "shadow.tpr@0.001")
    assert jobs[-1].shadows == 2


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"names": ["dpsdg"]}, "methods = 'dpsdg'"),
        ({"names": []}, "methods = ''"),
        ({"names": ["dpsgd", "dpsgd"]}, "methods = 'dpsgd': is named twice"),
        ({"names": ["dpsgd:published"]}, "methods = 'dpsgd:published': only dpsur"),
        ({"names": ["dpsur:leaky"]}, "methods = 'dpsur:leaky': variants are"),
        ({"epsilons": []}, "epsilon = ''"),
        ({"epsilons": [0]}, "epsilon = 0"),
        ({"epsilons": [1, -2]}, "epsilon = -2"),
        ({"epsilons": [float("inf")]}, "epsilon = inf"),
        ({"epsilons": [1, 1.0]}, "epsilon = 1.0: is given twice"),
        ({"seeds": 0}, "seeds = 0"),
        ({"attacks": ["magic"]}, "attacks = 'magic'"),
        ({"attacks": ["shadow", "shadow"]}, "attacks = 'shadow': is named twice"),
        ({"attacks": ["shadow"], "shadows": 3}, "shadows = 3"),
        ({"data": "nothing"}, "data = 'nothing'"),
        ({"data": "nowhere.csv"}, "there is no such file"),
        ({"shared": {"data_options": {"target": "y"}}}, "target = 'y'"),
        ({"overrides": {"dpis": {"lr": 1.0}}}, "set = 'dpis.lr'"),
        ({"overrides": {"dpsgd": {"epsilon": 1.0}}}, "set = 'dpsgd.epsilon'"),
        ({"overrides": {"dpsgd": {"seed": 1}}}, "set = 'dpsgd.seed'"),
        ({"overrides": {"dpsgd": {"k": 1}}}, "set = 'dpsgd.k'"),
        ({"overrides": {"dpsgd": {"batch": "many"}}}, "set = 'dpsgd.batch=many'"),
        ({"names": ["sgd"], "overrides": {"sgd": {"clip": 1.0}}}, "clip = 1.0"),
    ],
)
def test_what_cannot_be_meant_is_refused(change, says):
    given = {"data": "digits", "names": ["dpsgd"], "epsilons": [1.0], **change}
    with pytest.raises(ReticentError) as caught:
        compare_plan(given.pop("data"), given.pop("names"), given.pop("epsilons"), **given)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_data_that_is_not_here_is_refused_at_once(tmp_path):
    with pytest.raises(DataError, match="reticent data get fashion-mnist"):
        compare_plan("fashion-mnist", ["dpsgd"], [1], root=str(tmp_path))


def test_what_no_training_could_do_names_its_method():
    # k times the batch must not exceed the records
    plan = compare_plan("digits", ["dpis"], [1], overrides={"dpis": {"batch": 1000}})
    with pytest.raises(OptionError, match=r"methods = 'dpis': at.* batch = 1000.*--set dpis"):
        check(plan, plan.cells)
    told = []
    plan = compare_plan("digits", ["sgd"], [1])
    check(plan, plan.cells, told.append)
    assert told == ["sgd"]
    small = compare_plan("digits", ["dpsgd"], [0.01], overrides={"dpsgd": {"noise": 0.5}})
    with pytest.raises(OptionError, match=r"at epsilon = 0.01: .*affords no release"):
        check(small, small.cells)


def test_a_file_is_read_once(tmp_path, monkeypatch):
    from reticent.cli import own_data

    counted = []

    def read(*given, **options):
        counted.append(given)
        return reading.from_file(*given, **options)

    monkeypatch.setattr(own_data, "from_file", read)
    plan = own_plan(tmp_path, ["dpsgd", "sign-adam", "sgd"], (1.0, 2.0))
    assert len(counted) == 1
    assert plan.own
    assert plan.records + plan.test_records == 200
    assert plan.classes == 2
    assert plan.cells[0].settings.lr != plan.cells[1].settings.lr  # it follows ε


def test_own_records_are_not_attacked_and_have_no_leaking_variant(tmp_path):
    path = str(people(tmp_path))
    given = {"shared": {"data_options": OPTIONS}}
    with pytest.raises(OptionError, match=r"attacks = 'shadow'.*reticent audit"):
        compare_plan(path, ["dpsgd"], [1], attacks=["shadow"], **given)
    for label in ("dpsur:published", "dpsur:repaired"):
        with pytest.raises(OptionError, match=f"methods = '{label}'"):
            compare_plan(path, [label], [1], **given)


def test_the_identity_of_records_is_not_shown(tmp_path):
    plan = own_plan(tmp_path)
    assert plan.identity not in repr(plan)
    assert all(plan.identity not in str(Job.content(job)) for job in plan.jobs())


def test_methods_without_noise_have_a_length_of_their_own_on_own_records(tmp_path):
    given = {"shared": {"data_options": OPTIONS}}
    plan = compare_plan(str(people(tmp_path)), ["dpsgd", "sgd", "advreg"], [1], **given)
    lengths = [(cell.settings.steps, cell.settings.epochs) for cell in plan.cells]
    assert lengths[0][0] is not None
    assert lengths[1:] == [(None, 20), (None, 4)]
    check(plan, plan.cells[1:2])
