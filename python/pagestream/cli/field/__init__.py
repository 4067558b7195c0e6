"""``pagestream bench --suite field``: compares all installed loaders on the same files."""
