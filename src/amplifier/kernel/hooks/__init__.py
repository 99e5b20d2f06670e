"""Handlers of events: registration, the call loop, the merging of results, approvals and injections."""
