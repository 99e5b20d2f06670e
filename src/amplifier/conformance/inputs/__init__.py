"""Inputs made without Hypothesis: from JSON Schemas, hostile values, hook payloads, conversations."""
