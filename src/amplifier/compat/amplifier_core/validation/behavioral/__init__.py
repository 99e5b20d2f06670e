"""Base classes of behavioural suites, as published modules import them."""
