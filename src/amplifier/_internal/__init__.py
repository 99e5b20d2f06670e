"""What several packages share and no user imports: it may change at any time."""
