"""Benchmark suites: the same requests to several engines, each in a process of its own."""
