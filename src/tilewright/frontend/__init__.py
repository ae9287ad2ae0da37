"""Front ends: a model of another framework in, a `Graph` out. Each is a package that is imported only when used."""
