"""Measurements, run by hand: `python -m benchmarks` makes them all and writes docs/performance.md."""
