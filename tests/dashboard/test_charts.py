"""Charts: every row is in a bar, whatever the times and numbers are."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

from hypothesis import given
from hypothesis import strategies as st

from checkback.dashboard.charts import HEIGHT, WIDTH, axis, line, positions, stacked

_T0 = datetime(2026, 11, 24, tzinfo=timezone.utc)
_MINUTE = timedelta(minutes=1)
_ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "minute": st.integers(0, 500).map(lambda number: _T0 + number * _MINUTE),
            "state": st.sampled_from(["COMMIT", "ROLLBACK", "DISCARD"]),
            "decisions": st.integers(1, 10**9),
        }
    ),
    max_size=30,
)


@given(_ROWS)
def test_bars_lie_in_the_chart_and_do_not_overlap(rows: list[dict[str, object]]) -> None:
    chart = stacked(rows, "state", "decisions", _MINUTE)
    assert len(chart.bars) == len({(row["minute"], row["state"]) for row in rows})
    for bar in chart.bars:
        assert 0 <= bar.x <= WIDTH
        assert -0.11 <= bar.y <= HEIGHT
        assert bar.y + bar.height <= HEIGHT + 0.11
    highest = max((HEIGHT - bar.y for bar in chart.bars), default=HEIGHT)
    assert abs(highest - HEIGHT) < 0.2


@given(_ROWS)
def test_a_line_has_a_point_for_each_interval(rows: list[dict[str, object]]) -> None:
    chart = line(rows, "decisions", _MINUTE)
    assert len(chart.line.split()) == len({row["minute"] for row in rows})


def test_charts_of_one_axis_show_a_time_at_the_same_place() -> None:
    early, late = ({"minute": _T0 + number * _MINUTE, "state": "COMMIT", "decisions": 1} for number in (0, 3))
    over = axis(_MINUTE, [early], [late], [])
    assert over == (_T0, _T0 + 4 * _MINUTE)
    assert [stacked([row], "state", "decisions", _MINUTE, over).bars[0].x for row in (early, late)] == [0, 480]
    assert line([early, late], "decisions", _MINUTE, over).line == "160.0,0.0 640.0,0.0"
    assert axis(_MINUTE, [], []) is None


def test_events_lie_between_the_first_and_the_last() -> None:
    assert positions([]) == []
    assert positions([None]) == [100.0]
    assert positions([_T0, _T0]) == [0.0, 0.0]
    assert positions([_T0, None, _T0 + _MINUTE, _T0 + 4 * _MINUTE]) == [0.0, 100.0, 25.0, 100.0]
