"""The calculator: time, disk, network and cost for a million to a billion texts, from rates measured here."""
