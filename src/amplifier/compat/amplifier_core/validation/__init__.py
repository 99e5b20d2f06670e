"""Validators, as published modules import them."""
