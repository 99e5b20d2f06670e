"""Test doubles that keep the contracts."""
