"""How L is learnt: schemes that turn draws, and scores, into a preconditioner, and know nothing of kernels."""
