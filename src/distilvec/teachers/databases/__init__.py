"""Vectors of databases: what an address names, one file per database that reads its rows, and one that uses them."""
