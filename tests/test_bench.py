import pytest

from bench import checkpoint, planner, plans, prefetch, tiers, write
from bench.harness import Options, Target, table

QUESTIONS = [checkpoint, planner, plans, prefetch, tiers, write]


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda module: module.__name__)
def test_a_question_answers_in_its_quick_form(question, tmp_path):
    results = question.main(Options(rounds=1, quick=True, folder=tmp_path))
    for result in results:
        assert result.figures
        assert set(result.targets) <= set(result.figures)
        assert {"io_engine", "page_cache", "emulated"} <= set(result.parameters)
        assert result.baseline in {timing.name for timing in result.timings}
    assert len(table(results).splitlines()) == 2 + sum(len(result.timings) for result in results)


def test_a_target_says_how_far_a_figure_is():
    assert Target(value=0.9).distance(0.95) == "target >= 0.9, met"
    assert Target(value=0.8).distance(0.4) == "target >= 0.8, missed by 50%"
    assert Target(value=1.0, at_most=True).distance(1.5) == "target <= 1, missed by 50%"
