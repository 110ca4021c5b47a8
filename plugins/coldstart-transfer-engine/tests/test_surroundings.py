"""The process is left as it was found: its environment, its standard error, its device."""

from __future__ import annotations

import logging
import os

import pytest
from coldstart_transfer_engine.surroundings import current, hushed, variables


def test_variables_are_set_for_the_block_and_the_host_s_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MC_LOG_LEVEL", "INFO")
    monkeypatch.delenv("MC_FORCE_TCP", raising=False)
    before = dict(os.environ)
    with variables({"MC_LOG_LEVEL": "ERROR", "MC_FORCE_TCP": "1"}):
        assert (os.environ["MC_LOG_LEVEL"], os.environ["MC_FORCE_TCP"]) == ("INFO", "1")
    assert dict(os.environ) == before


def test_the_library_s_lines_go_to_the_log_and_all_others_arrive(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with hushed():
        os.write(2, b"E1130 10:12:34.529395 14013 transfer_metadata.cpp:1098] Local segment descriptor not found\n")
        os.write(2, b"somebody else's words\n")
        os.write(2, b"WARNING: Logging before InitGoogleLogging() is written to STDERR\n")
    os.write(2, b"after\n")
    assert capfd.readouterr().err == "somebody else's words\nafter\n"
    assert [record.levelname for record in caplog.records] == ["DEBUG", "DEBUG"]
    assert "Local segment descriptor not found" in caplog.text


def test_a_process_without_standard_error_is_no_hindrance(monkeypatch: pytest.MonkeyPatch) -> None:
    def closed(descriptor: int) -> int:
        raise OSError("Bad file descriptor")

    monkeypatch.setattr(os, "dup", closed)
    with hushed():
        pass


def test_memory_of_the_host_needs_no_device() -> None:
    with current("cpu"):
        pass
