"""Scorers: what says a number for a query and a document, beside the teachers, which say a vector for a text."""
