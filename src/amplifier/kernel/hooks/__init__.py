"""Event handlers: register them, call them, merge their results and carry these out."""
