"""What runs inside vLLM's own environment. Nothing else of this package imports vLLM."""
