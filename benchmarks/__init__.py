"""Benchmarks that need hardware of their own; ``coldstart bench`` is the one for every machine."""
