"""Index algebra and tensor expressions: the language in which sizes, indices, values and operators are written.

Importing the package installs the simplifying operations behind the operators of `Expr`, see `nodes.install_builders`.
"""

from tilewright.expr.nodes import install_builders
from tilewright.expr.operations import binary, cast, divide, select, unary
from tilewright.expr.printer import show

install_builders(binary=binary, unary=unary, divide=divide, select=select, cast=cast, show=show)
