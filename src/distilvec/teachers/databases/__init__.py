"""Vectors of databases: what an address names, how each database reads its rows, and what is made of them."""
