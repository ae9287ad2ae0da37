"""MCFuser's paper, repeated on this machine as far as a processor can show it.

What the search space loses to each rule (Fig. 7), the estimated footprint beside that of the loops (Fig. 10), the model
beside measured times (Fig. 11), seconds of searches (Table IV), and fused kernels beside each other (Fig. 8).
"""
