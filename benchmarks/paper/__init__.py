"""The experiments of Hird & Livingstone (2026), Section 4, rerun: `python -m benchmarks.paper`."""
