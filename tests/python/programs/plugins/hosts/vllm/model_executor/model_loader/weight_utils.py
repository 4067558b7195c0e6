import re

from safetensors.torch import safe_open


def safetensors_weights_iterator(
    hf_weights_files,
    use_tqdm_on_load,
    safetensors_load_strategy=None,
    local_expert_ids=None,
):
    assert safetensors_load_strategy == "lazy", "vLLM reads ahead, too"
    for path in hf_weights_files:
        with safe_open(path, framework="pt") as file:
            for name in file.keys():
                expert = re.search(r"\.experts\.(\d+)\.", name)
                if local_expert_ids is None or expert is None or int(expert[1]) in local_expert_ids:
                    yield name, file.get_tensor(name)
