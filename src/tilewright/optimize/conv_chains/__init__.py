"""The optimizer of fused chains of convolutions: tiles of rows with halos."""
