"""The event log: its schema, the recorder that writes it and the one reader."""
