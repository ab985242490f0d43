"""What a run gave: diagnostics, and traces for ArviZ."""
