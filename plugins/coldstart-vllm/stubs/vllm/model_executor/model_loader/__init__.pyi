from collections.abc import Callable
from typing import TypeVar

from vllm.model_executor.model_loader.base_loader import BaseModelLoader

L = TypeVar("L", bound=type[BaseModelLoader])

def register_model_loader(load_format: str) -> Callable[[L], L]: ...
