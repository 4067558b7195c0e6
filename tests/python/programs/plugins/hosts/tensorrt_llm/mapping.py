class Mapping:
    pass
