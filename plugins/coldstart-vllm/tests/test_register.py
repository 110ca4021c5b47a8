"""The entry point never breaks an engine, whatever is or is not installed, and imports nothing heavy by itself."""

from __future__ import annotations

import logging
import subprocess
import sys
from types import ModuleType

import coldstart_vllm
import pytest

LOADERS = "vllm.model_executor.model_loader"


@pytest.fixture(autouse=True)
def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coldstart_vllm, "_registered", False)


def test_without_vllm_it_logs_and_returns(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)
    monkeypatch.setitem(sys.modules, LOADERS, None)
    with caplog.at_level(logging.ERROR, "vllm.coldstart"):
        coldstart_vllm.register()
    assert "load format coldstart is not available" in caplog.text


def test_a_vllm_that_refuses_is_no_error_either(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    changed = ModuleType(LOADERS)  # a vLLM whose registry has gone
    monkeypatch.setitem(sys.modules, LOADERS, changed)
    with caplog.at_level(logging.ERROR, "vllm.coldstart"):
        coldstart_vllm.register()
        coldstart_vllm.register()
    assert caplog.text.count("not available") == 2


def test_importing_it_imports_neither_torch_nor_vllm() -> None:
    code = "import sys, coldstart_vllm; sys.exit(bool({'torch', 'vllm', 'redis', 'coldstart'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": ":".join(sys.path)}).returncode == 0
