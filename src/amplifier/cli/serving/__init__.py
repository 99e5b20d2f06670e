"""Agents behind a protocol: an editor's, HTTP's, and the page that follows a session."""
