"""A fake LLM server for providers, and its process."""
