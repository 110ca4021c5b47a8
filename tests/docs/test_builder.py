"""The builder that ``docs/skeletons.md`` shows passes the suite that it shows with it."""

from __future__ import annotations

from typing import Any

from tests.docs import stand_ins
from tests.docs.pages import blocks

(SHOWN,) = [block for block in blocks("python") if "class MlpSkeleton" in block.text]
NAMES: dict[str, Any] = {**vars(stand_ins), "__name__": __name__}
exec(compile(SHOWN.text, SHOWN.where, "exec"), NAMES)

TestMlp = NAMES["TestMlp"]
