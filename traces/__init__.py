"""Arrival traces: one loader a format, transforms, generators, statistics.

Start at `traces.prepare.prepare` (what a replay uses), `traces.load.open_trace`, `traces.info.summarize`,
`traces.generate.generate` and `traces.export.write_trace`; the row is `traces.schema.TraceRow`.
"""
