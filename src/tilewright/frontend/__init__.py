"""Front ends, which import models of other frameworks as graphs; each is a package that is imported on first use."""
