"""Build inputs without Hypothesis: from schemas, odd values, hook payloads, conversations."""
