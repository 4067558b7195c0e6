from dataclasses import dataclass, field


@dataclass
class LoadConfig:
    load_format: str = "auto"
    safetensors_load_strategy: str | None = None
    model_loader_extra_config: dict = field(default_factory=dict)
