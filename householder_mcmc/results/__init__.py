"""Results of runs: diagnostics, and traces for ArviZ."""
