"""Names of the views of topics."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from checkback.consumer.spark_reader import view_names


@given(topics=st.sets(st.text("aAbB-_|1", min_size=1, max_size=4)), lasting=st.booleans())
@example(topics={"Orders", "orders", "orders__b7e8acdd52"}, lasting=False)
def test_views_have_names_of_their_own(topics: set[str], lasting: bool) -> None:
    """Also beside a topic that is named as the view of another one."""
    names = view_names(topics, lasting)
    assert set(names) == topics
    assert len({name.casefold() for name in names.values()}) == len(topics)
    if not lasting and len({topic.casefold() for topic in topics}) == len(topics):
        assert all(topic == name for topic, name in names.items() if "__" not in topic)
