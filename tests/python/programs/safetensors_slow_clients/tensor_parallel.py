"""Two ranks of transformers' tensor parallelism, which each load their own parts. Prints digests.

``tensor_parallel.py RENDEZVOUS FOLDER...``, run by ``forks.py install``.
"""

import os
import sys
import warnings

from loading import digest


def load(rank, rendezvous, *folders):
    warnings.simplefilter("ignore")
    import torch.distributed
    import transformers
    from torch.distributed.tensor import DTensor
    from transformers.distributed import DistributedConfig

    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    torch.distributed.init_process_group("gloo", f"file://{rendezvous}", rank=rank, world_size=2)
    for folder in folders:
        config = DistributedConfig(tp_size=2)
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, distributed_config=config)
        state = model.state_dict()
        assert any(isinstance(tensor, DTensor) for tensor in state.values())
        whole = {
            name: tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
            for name, tensor in state.items()
        }
        if rank == 0:
            print(digest(whole), flush=True)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    import torch.multiprocessing

    torch.multiprocessing.start_processes(load, sys.argv[1:], nprocs=2, start_method="fork")
