"""What uses L: kernels of one chain in BlackJAX's shape, their Metropolis choice, and loops over chains."""
