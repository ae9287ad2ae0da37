"""Random chains of convolutions, fused to one kernel with halos."""
