"""The command line, its report, and the demo's posterior."""
