from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

FORMATS = {"safetensors": DefaultModelLoader}


def register_model_loader(load_format):
    def register(loader):
        assert load_format not in FORMATS, "vLLM warns of a second registration"
        FORMATS[load_format] = loader
        return loader

    return register


def get_model_loader(load_config):
    return FORMATS[load_config.load_format](load_config)
