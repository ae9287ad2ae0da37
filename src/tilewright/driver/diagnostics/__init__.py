"""What users look into a compilation with: text of its levels, profiles, errors against double precision."""
