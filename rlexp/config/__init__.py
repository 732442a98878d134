"""Composing, checking and instantiating configs. Free of torch."""
