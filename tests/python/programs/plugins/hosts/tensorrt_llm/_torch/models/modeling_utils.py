LOADERS = {}


def register_checkpoint_weight_loader(name: str):
    def register(loader):
        LOADERS[name] = loader
        return loader

    return register
