"""Batches of token windows: `TokenLoader`, `Mixture`."""
