"""Recipes to start from, and the papers' settings: `distilvec recipes`."""
