import numpy as np
import pytest

from mtrains.profiler.analytic import TableShape, meta2021_table, zipf_table
from mtrains.profiler.popularity import meta2021, zipf


def simulate(batches, capacity, lookahead):
    """Misses a batch of next use in a window, LRU beyond, evicting after each batch; of the second half."""
    uses = {}
    for number, batch in enumerate(batches):
        for row in batch:
            uses.setdefault(row, []).append(number)
    position = dict.fromkeys(uses, 0)
    held, misses = {}, []
    for number, batch in enumerate(batches):
        misses.append(sum(row not in held for row in batch))
        for row in batch:
            held[row] = number
            position[row] += 1

        def worth(row, now=number):
            later = uses[row][position[row]] if position[row] < len(uses[row]) else 10**9
            return (1, -later) if later <= now + lookahead else (0, held[row])

        for row in sorted(held, key=worth)[: max(0, len(held) - capacity)]:
            del held[row]
    return float(np.mean(misses[len(misses) // 2 :]))


@pytest.mark.parametrize(("exponent", "lookahead"), [(1.05, 16), (0.8, 4), (0.8, 64)])
def test_the_curve_of_next_use_is_that_of_a_simulation(exponent, lookahead):
    rows, batch, lookups = 2000, 64, 4
    random = np.random.default_rng(7)
    law = np.arange(1.0, rows + 1) ** -exponent
    drawn = random.choice(rows, size=(400, batch * lookups), p=law / law.sum())
    batches = [np.unique(one).tolist() for one in drawn]
    shape = TableShape(
        name="t",
        num_embeddings=rows,
        embedding_dim=4,
        lookups_per_sample=lookups,
        batch_size=batch,
        lookahead=lookahead,
    )
    curve = zipf_table(shape, exponent=exponent).curves[0]
    unique = np.mean([len(one) for one in batches])
    assert curve.unique_rows == pytest.approx(unique, rel=0.02)
    for capacity in (100, 200, 500, 1000):
        predicted = np.interp(capacity, curve.capacity_rows, curve.fetches)
        assert predicted / unique == pytest.approx(simulate(batches, capacity, lookahead) / unique, abs=0.02)


def test_the_discrete_zipf_law_has_its_known_footprint():
    assert zipf(1_000_000, 1.05).footprint(40_960) == pytest.approx(14_689, rel=0.005)
    assert zipf(1_000_000, 1.05).num_rows == pytest.approx(1e6)
    assert zipf(5, 0).footprint(1e9) == pytest.approx(5)


def test_the_bins_of_a_long_law_hold_what_its_ranks_do():
    ranks = np.arange(1.0, 100_001)
    exact = ranks**-1.05 / (ranks**-1.05).sum()
    binned = zipf(100_000, 1.05)
    for draws in (1e3, 1e5, 1e7):
        assert binned.footprint(draws) == pytest.approx(float((1 - (1 - exact) ** draws).sum()), rel=1e-3)
    assert binned.footprint(binned.draws_for(30_000)) == pytest.approx(30_000, rel=1e-6)


def test_metas_reuse_has_its_published_histogram():
    lookups, bags = 1_000_000, 65_536
    law = meta2021(lookups, bags)
    rates = law.probabilities * lookups
    once = (law.counts * rates * np.exp(-rates)).sum()
    rows = law.footprint(lookups)
    assert rows / lookups == pytest.approx(0.145, abs=0.01)
    assert once / rows == pytest.approx(0.473, abs=0.02)
    busy = rates > 32
    assert (law.counts * rates)[busy].sum() / lookups == pytest.approx(0.494, abs=0.03)


def test_a_known_distinct_share_replaces_the_laws_own():
    shape = TableShape(name="t", num_embeddings=10**7, embedding_dim=4, lookups_per_sample=100, batch_size=1024)
    curve = zipf_table(shape, distinct_share=0.145).curves[0]
    assert curve.unique_rows == pytest.approx(0.145 * 102_400, rel=1e-6)


def test_rows_that_turn_over_need_more_room_than_rows_that_stay():
    shape = TableShape(name="t", num_embeddings=10**6, embedding_dim=4, lookups_per_sample=10, batch_size=1024)
    quick, slow = (meta2021_table(shape, life=life) for life in (8, 4096))
    (_, at_quick), (_, at_slow) = quick.footprint[-1], slow.footprint[-1]
    assert at_quick > 2 * at_slow
    assert quick.curves[0].hits[-1] == quick.curves[0].unique_rows
