"""The batches at which a time slider stops: the newest ones each, and some of all that there were before."""

from __future__ import annotations

from checkback.inspect.engines.question import Question

#: The newest batch first. Of batches with equal times the higher id.
ORDER = "finished_at DESC, batch_id DESC"


def stops_question(near: int, far: int) -> Question:
    """batch_id, finished_at of the ``near`` newest batches, of up to ``far`` evenly chosen older ones, and the first.

    The number of stops does not grow with that of the batches: ten thousand are an hour and a half at a trigger of
    500 ms.
    """
    return Question(
        f"""
        SELECT batch_id, finished_at FROM (
            SELECT batch_id, finished_at, row_number() OVER (ORDER BY {ORDER}) AS place,
                count(*) OVER () AS number
            FROM {{batches}}) AS placed
        WHERE place <= :near OR place = number
            OR (place - :near) % greatest(1, CAST(ceil((number - :near) / :far) AS BIGINT)) = 0""",
        ORDER,
        {"near": near, "far": far},
    )
