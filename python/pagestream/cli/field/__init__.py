"""``pagestream bench --suite field``: the loaders that are installed, on the same files."""
