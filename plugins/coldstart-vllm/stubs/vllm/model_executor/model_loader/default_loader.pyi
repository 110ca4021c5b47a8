from collections.abc import Generator

import torch
from torch import nn
from vllm.config import ModelConfig
from vllm.model_executor.model_loader.base_loader import BaseModelLoader

class DefaultModelLoader(BaseModelLoader):
    def get_all_weights(
        self, model_config: ModelConfig, model: nn.Module
    ) -> Generator[tuple[str, torch.Tensor]]: ...
