"""Control flow: branches and loops of a graph as steps with bodies, and the rewrites that simplify them first."""
