"""Base classes of structural suites, as published modules import them."""
