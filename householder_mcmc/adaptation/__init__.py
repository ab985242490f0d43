"""Chains and a learner together: adaptive runs, warm-ups, and the learner inside BlackJAX's own warm-ups."""
