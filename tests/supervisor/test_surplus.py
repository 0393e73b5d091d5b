"""Brokers of a data folder that are more than the workers."""

from __future__ import annotations

from pathlib import Path

from kafkawire.supervisor.surplus import is_guest, mark_guest, surplus_brokers


def test_brokers_of_folder(tmp_path: Path) -> None:
    assert surplus_brokers(str(tmp_path), 1, 2) == []
    for name in ("1", "2", "3", "10", "x", "4.old"):
        (tmp_path / "brokers" / name).mkdir(parents=True)
    assert surplus_brokers(str(tmp_path), 1, 2) == [3, 10]
    assert surplus_brokers(str(tmp_path), 2, 2) == [1, 10]
    assert surplus_brokers(str(tmp_path / "absent"), 1, 1) == []


def test_broker_of_another_machine_is_no_surplus(tmp_path: Path) -> None:
    data = str(tmp_path)
    mark_guest(data, 3)
    (tmp_path / "brokers" / "3").mkdir()
    (tmp_path / "brokers" / "4").mkdir()
    assert [is_guest(data, node) for node in (3, 4)] == [True, False]
    assert surplus_brokers(data, 1, 2) == [4]
