import dataclasses

import pytest

import mtrains
from mtrains.placement.pictures import plan_figures, tables_figure
from mtrains.placement.what_if import FACTORS, what_if

WORKLOAD = mtrains.Workload(writer_bytes=0, compute_seconds=1e-4, burst_ratio=1.2, latency_seconds=1e-4)


@pytest.fixture
def profile(cases):
    return cases.profile([cases.table(f"t{n}", rows=4000 * (n + 1), power=0.3 + 0.2 * n) for n in range(3)])


def by_resource(answers):
    found = {}
    for answer in answers:
        found.setdefault(answer.resource, {})[answer.factor] = answer
    return found


def test_more_of_the_limit_helps_and_of_others_does_not(cases, profile):
    machine = cases.machine(dram=2.2e6, scm=6e5)
    made = mtrains.plan(profile, machine, workload=WORKLOAD)
    found = by_resource(what_if(profile, machine, WORKLOAD))
    assert set(found) == {"dram capacity", "scm capacity", "scm bandwidth", "log reads", "log writes", "compute"}
    for answers in found.values():
        assert set(answers) == set(FACTORS)
        steps = [answers[factor].step_seconds or float("inf") for factor in FACTORS]
        assert steps == pytest.approx(sorted(steps, reverse=True))
    assert made.binding.startswith("log")
    assert found["log reads"][2.0].ratio < 0.7
    assert found["dram capacity"][2.0].ratio < 0.7
    assert found["compute"][4.0].ratio == pytest.approx(1.0, abs=1e-3)


def test_the_answer_is_what_a_plan_on_that_machine_says(cases, profile):
    machine = cases.machine(dram=2.2e6)
    answer = by_resource(what_if(profile, machine, WORKLOAD))["dram capacity"][2.0]
    made = mtrains.plan(profile, machine.with_capacity("dram", 4.4e6), workload=WORKLOAD)
    assert answer.step_seconds == pytest.approx(made.step_seconds, rel=5e-3)


def test_what_has_no_room_is_told(cases, profile):
    answers = by_resource(what_if(profile, cases.machine(dram=2.0e6), WORKLOAD))
    assert answers["dram capacity"][0.5].step_seconds is None
    assert answers["dram capacity"][0.5].ratio is None


def test_links_and_cores_are_asked_for_where_there_are_some(cases, profile):
    machine = cases.machine(hbm=1e6, dram=2.2e6)
    link = mtrains.placement.topology.Link(up_bytes_per_second=1e9, down_bytes_per_second=1e9)
    cpu = mtrains.placement.topology.Cpu(cores=4, seconds_per_miss=1e-6)
    whole = dataclasses.replace(machine, link=link, cpu=cpu)
    found = by_resource(what_if(profile, whole, WORKLOAD))
    assert {"link", "cpu cores", "hbm capacity", "dram bandwidth"} <= set(found)


def test_pictures_of_many_tables_show_those_with_the_most_uses(cases):
    tables = [cases.table(f"t{n}", rows=500, unique=1.0 + n) for n in range(60)]
    made = mtrains.plan(cases.profile(tables), cases.machine(dram=4e6), workload=WORKLOAD)
    figure = tables_figure(made)
    labels = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert labels == [f"t{n}" for n in range(59, 19, -1)]
    assert "the 40 with the most uses of 60" in figure.axes[0].get_title(loc="left")
    assert list(plan_figures(made)) == ["tables", "tiers", "limits"]
