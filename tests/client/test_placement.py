"""Plans that make brokers even.

Covers: kafkawire.client.placement.
"""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from kafkawire.client.offsets import Partition
from kafkawire.client.placement import even

LED = st.dictionaries(
    st.tuples(st.sampled_from("abc"), st.integers(0, 30)), st.integers(-1, 4), max_size=60
)


@given(LED, st.sets(st.integers(0, 4)))
def test_brokers_lead_the_same_number_after_the_fewest_moves(
    led: dict[Partition, int], brokers: set[int]
) -> None:
    moves = even(led, brokers)
    after = dict(led)
    for partition, leader, target in moves:
        assert after[partition] == leader
        assert {leader, target} <= brokers
        assert leader != target
        after[partition] = target
    before = Counter(leader for leader in led.values() if leader in brokers)
    counts = Counter(leader for leader in after.values() if leader in brokers)
    if brokers:
        found = [counts[node] for node in brokers]
        assert max(found) - min(found) <= 1
        share, larger = divmod(sum(found), len(found))
        surplus = sorted((before[node] - share for node in brokers), reverse=True)
        least = sum(max(0, s - (at < larger)) for at, s in enumerate(surplus))
        assert len(moves) == least
    else:
        assert moves == []


def test_each_topic_is_divided() -> None:
    led = {("a", n): 1 for n in range(4)} | {("b", 0): 1, ("c", 0): 1}
    moves = even(led, [1, 2])
    assert [each.partition for each in moves] == [("a", 0), ("a", 1), ("b", 0)]
    assert {each.target for each in moves} == {2}
