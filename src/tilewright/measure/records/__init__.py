"""Records: what is known of programs of kernels, kept in stores that outlive processes, versions and machines."""
