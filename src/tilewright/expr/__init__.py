"""Index algebra and tensor expressions: the language in which sizes, indices, values and operators are written."""
