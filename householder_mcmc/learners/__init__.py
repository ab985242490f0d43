"""How a preconditioner L is learnt. A `Scheme` turns draws, and scores, into a map, and knows nothing of the kernel.

The proposal covariance is a multiple of L L^T. With rank m, d dimensions, and blocks of n = 10 x chains draws:

| scheme | map | memory | time of a step |
|---|---|---|---|
| `hm.none()` | L = I | O(d) | O(d) |
| `hm.diagonal()` | marginal standard deviations | O(d) | O(d) |
| `hm.eigen(m)` | leading eigenvectors, and a scale for each column of Q | O(m d) | O(m^2 d) |
| `hm.eigen(m, tail="isotropic")` | leading eigenvectors, one scale for the rest | O(m d) | O(m^2 d) |
| `hm.eigen_identity(m)` | leading eigenvectors, scale 1 for the rest | O(m d) | O(m^2 d) |
| `hm.two_ended()` | a scale for each coordinate, and both ends of what is left | O((m + n) d) | O(m d), see below |
| `hm.dense()` | full covariance | O(d^2) | O(d^3) |
| `hm.fixed(preconditioner)` | yours | its own | its own |

At every tenth step `two_ended` does O((m + k)^2 d + (m + k)^3) work, k = min(n, 64). Without a rank it learns all
directions up to d = 256; above that m = 65,536 / d of them, but at least 32.

Kernels take any of `hm.Diagonal`, `hm.Dense`, `hm.LowRank`, `hm.Householder`, a BlackJAX inverse mass matrix, or a
pytree of yours, such as a NamedTuple, with `apply`, `apply_transpose` and `to_dense`.

`diagonal`, `dense` and `eigen` begin with unit variances. After 2000 steps these change what is learnt by less than a
tenth for standard deviations down to 2e-7 in float32. Standard deviations below 1.1e-7 are learnt as that.
"""
