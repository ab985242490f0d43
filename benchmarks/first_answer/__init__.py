"""What a user waits for, from the start of a process to the draws: `python -m benchmarks.first_answer`."""
