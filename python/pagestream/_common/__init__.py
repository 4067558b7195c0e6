"""Checks, environment, progress and locks that every package of `pagestream` shares."""
