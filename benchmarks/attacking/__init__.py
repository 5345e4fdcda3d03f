"""The parts of `attack.py`."""
