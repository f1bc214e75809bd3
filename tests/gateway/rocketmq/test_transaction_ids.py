"""Transaction ids: any gateway of the same tables reads them; a forged or foreign one names nothing."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkback.gateway.rocketmq.transaction_ids import Half, TransactionIds

HALF = Half(3, 12, "orders", "01AB/34")


def ids(table_id: str = "8c6d1d2e") -> TransactionIds:
    return TransactionIds(table_id)


@given(st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1), st.text(st.characters(exclude_categories=["Cs"])))
def test_another_gateway_reads_it(queue_id: int, queue_offset: int, message_id: str) -> None:
    half = Half(queue_id, queue_offset, "orders", message_id)
    assert ids().read(ids().of(half, "payments"), "payments") == half


def test_id_of_other_tables_names_nothing() -> None:
    assert ids("9d7e2e3f").read(ids().of(HALF, "payments"), "payments") is None


def test_id_of_another_topic_names_nothing() -> None:
    assert ids().read(ids().of(HALF, "payments"), "payment") is None


def test_no_bit_can_be_changed() -> None:
    signed = base64.urlsafe_b64decode(ids().of(HALF, "payments"))
    for bit in range(8 * len(signed)):
        forged = bytearray(signed)
        forged[bit // 8] ^= 1 << bit % 8
        assert ids().read(base64.urlsafe_b64encode(bytes(forged)).decode(), "payments") is None


@pytest.mark.parametrize("text", ["", "NOSUCH", "A" * 8192, "A" * 100_000, "\u00e9", "====", "QQ==", "MQ=="])
def test_garbage_names_nothing(text: str) -> None:
    assert ids().read(text, "payments") is None
