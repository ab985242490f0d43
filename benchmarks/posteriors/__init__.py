"""Samplers at about equal numbers of gradients, warm-up included, on the paper's targets and on real posteriors."""
