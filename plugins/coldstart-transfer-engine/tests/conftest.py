"""What the tests share."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("coldstart.testing.late_writes", "coldstart.testing.transport_contract")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
