"""What runs inside vLLM's own environment. Nothing else imports vLLM."""
