LOADERS = {}


def register_checkpoint_weight_loader(name):
    def register(loader):
        LOADERS[name] = loader
        return loader

    return register
