import torch

class CacheConfig:
    cache_dtype: str

class ParallelConfig:
    enable_expert_parallel: bool

class CompilationConfig: ...

class HfConfig:
    def to_dict(self) -> dict[str, object]: ...

class LoadConfig:
    load_format: str
    download_dir: str | None
    model_loader_extra_config: object

class ModelConfig:
    model: str
    revision: str | None
    dtype: torch.dtype
    quantization: str | None
    hf_config: HfConfig

class VllmConfig:
    model_config: ModelConfig
    cache_config: CacheConfig
    parallel_config: ParallelConfig
    compilation_config: CompilationConfig
